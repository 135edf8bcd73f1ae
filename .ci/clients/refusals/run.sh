#!/bin/sh
# Sends requests of client programs to a server that refuses all of them, and prints the seconds at which each program sent
# them: one minute.
set -eu
sources=$(cd "$(dirname "$0")" && pwd)
packages=bin/clients/refusals.packages
mkdir -p "$packages"
cp "$sources"/*.mjs "$sources"/package*.json "$packages"
npm ci --prefix "$packages" --no-audit --no-fund --loglevel error >&2
${GO:-go} build -C "$sources" -o "$PWD/$packages/refusals" .
port=${PORT:-9777}
fifo=$packages/end
rm -f "$fifo" && mkfifo "$fifo"
node "$packages/server.mjs" "$port" <"$fifo" &
server=$!
exec 9>"$fifo" # the server ends when this file is closed
sleep 1
programs=""
for kind in "Weir%20403" "Weir%20429" "API%20primary" "API%20secondary"; do
	url=http://127.0.0.1:$port/$kind
	node "$packages/programs.mjs" "$url" 9>&- & programs="$programs $!"
	"$packages/refusals" "$url" 9>&- & programs="$programs $!"
	/usr/bin/python3 "$sources/retries.py" "$url" 9>&- & programs="$programs $!"
	ruby -roctokit -e 'begin; Octokit::Client.new(api_endpoint: ARGV[0]).user("a"); rescue Octokit::Error => e; warn "octokit.rb #{Octokit::VERSION} #{ARGV[0]}: #{e.class}"; end' "$url/octokit.rb/" 9>&- & programs="$programs $!"
	perl -MNet::GitHub::V3 -e 'eval { Net::GitHub::V3->new(access_token => "x", api_url => $ARGV[0])->user->show }' "$url/Net::GitHub" 9>&- & programs="$programs $!"
	curl -s --retry 3 "$url/curl%20--retry%203" 9>&- >"$packages/curl.txt" & programs="$programs $!"
	wget -q -t 4 --retry-on-http-error=403,429 -O - "$url/wget%20--retry-on-http-error" 9>&- >"$packages/wget.txt" & programs="$programs $!"
done
for program in $programs; do wait "$program" || true; done # a refusal is an error
exec 9>&-
wait "$server"
