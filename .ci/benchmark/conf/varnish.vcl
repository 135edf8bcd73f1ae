vcl 4.1;

backend api {
  .host = "{{.UpstreamHost}}";
  .port = "{{.UpstreamPort}}";
}

# The responses vary by Authorization, so Varnish may store them for requests with that field.
sub vcl_recv {
  if (req.url ~ "^/users/") {
    return (pass);
  }
  return (hash);
}
