vcl 4.1;

backend api {
  .host = "{{.UpstreamHost}}";
  .port = "{{.UpstreamPort}}";
}

# The answers vary by Authorization, so they may be kept although requests have it.
sub vcl_recv {
  if (req.url ~ "^/users/") {
    return (pass);
  }
  return (hash);
}
