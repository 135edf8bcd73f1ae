package service

import "net/http"

// convertManifest creates an app from a manifest's code (Document B section 2.6). Repeated requests with one code
// return the same app.
func convertManifest(s *Service, req *request) response {
	code := req.params["code"]
	if s.world.apps[code] == 0 {
		s.world.apps[code] = len(s.world.apps) + 1
	}
	id := s.world.apps[code]
	return response{status: http.StatusCreated, volatile: true, body: object{
		{"id", id}, {"slug", "app-" + code}, {"name", "App " + code},
		{"client_id", "client-" + code}, {"client_secret", hashOf(uint64(id), 1)},
		{"webhook_secret", hashOf(uint64(id), 2)},
		{"html_url", req.base + "/apps/app-" + code},
	}}
}
