# A sidecar connects from one address, whoever the client is.
clients=127.0.0.6
if [ "$NAMESPACE" = plain ]; then clients=%; fi
mariadb-install-db --no-defaults --datadir=/tmp/data --tmpdir=/tmp --skip-test-db --auth-root-authentication-method=normal >/dev/null
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=mariadb -days 2 \
	-keyout /tmp/server.key -out /tmp/server.crt 2>/dev/null
# Each line is a statement.
printf '%s\n' 'create database shop;' "create user app@'$clients';" "grant all on *.* to app@'$clients';" >/tmp/init.sql
exec mariadbd --no-defaults --datadir=/tmp/data --tmpdir=/tmp --socket=/tmp/socket --pid-file=/tmp/pid --bind-address=0.0.0.0 \
	--init-file=/tmp/init.sql --ssl-cert=/tmp/server.crt --ssl-key=/tmp/server.key --skip-name-resolve --local-infile=1 \
	--innodb-buffer-pool-size=16M --innodb-log-file-size=8M --innodb-flush-log-at-trx-commit=0 --innodb-use-native-aio=0
