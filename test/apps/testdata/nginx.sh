mkdir -p /tmp/www/upload
printf hello >/tmp/www/index.html
head -c 10485760 /dev/zero >/tmp/www/large
head -c 100000 /dev/zero | tr '\0' a >/tmp/www/text
cat >/tmp/nginx.conf <<'END'
daemon off;
pid /tmp/nginx.pid;
worker_processes 1;
events {}
http {
  access_log off;
  client_body_temp_path /tmp/body;
  proxy_temp_path /tmp/proxy;
  fastcgi_temp_path /tmp/fastcgi;
  uwsgi_temp_path /tmp/uwsgi;
  scgi_temp_path /tmp/scgi;
  gzip on;
  gzip_types text/plain;
  default_type text/plain;
  keepalive_requests 100000;
  server {
    listen 8080;
    root /tmp/www;
    client_max_body_size 10m;
    location /upload { dav_methods PUT; }
    location /small { client_max_body_size 1k; return 200 taken; }
    location /slow { alias /tmp/www/large; limit_rate 64k; }
    location /old { return 301 http://shop.example/new; }
  }
}
END
exec nginx -e stderr -c /tmp/nginx.conf
