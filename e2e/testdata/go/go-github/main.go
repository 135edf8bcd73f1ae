// Command go-github is a program of go-github with the host of the API compiled in, like the Terraform provider.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/google/go-github/v89/github"
)

func main() {
	client, err := github.NewClient(github.WithAuthToken("none"))
	if err == nil {
		var user *github.User
		if user, _, err = client.Users.Get(context.Background(), ""); err == nil {
			fmt.Println(user.GetLogin())
			return
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
