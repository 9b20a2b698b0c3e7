mkdir -p /tmp/www
printf hello >/tmp/www/index.html
head -c 10485760 /dev/zero >/tmp/www/large
exec nghttpd --no-tls -d /tmp/www --trailer 'x-sum: 5' 8080
