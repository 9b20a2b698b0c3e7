package apps

// databases are databases.
var databases = []application{
	{
		name: "redis", program: "Redis", few: true, file: "usr/bin/redis-server",
		ports:  []port{{number: 6379, appProtocol: "redis"}},
		advice: "`appProtocol: redis` or `tcp`.",
		checks: []check{
			{name: "a value", command: `redis-cli -h $HOST set a b; redis-cli -h $HOST get a`, want: "OK\nb"},
			{name: "a value of 1 MB", command: `head -c 1000000 /dev/zero | redis-cli -h $HOST -x set big; redis-cli -h $HOST strlen big; redis-cli -h $HOST get big | wc -c`, want: "OK\n1000000\n1000001"},
			{name: "1,000 commands at once", command: `for n in $(seq 1000); do echo "incr $HOST"; done | redis-cli -h $HOST --pipe | tail -1`, want: "errors: 0, replies: 1000"},
			{name: "a transaction", command: `printf 'multi\nset x 1\nincr x\nexec\n' | redis-cli -h $HOST | tail -2`, want: "OK\n2"},
			{name: "a blocking command", command: `redis-cli -h $HOST blpop queue-$UNIQUE 10 >popped & sleep 1; redis-cli -h $HOST rpush queue-$UNIQUE hello >pushed; wait; tail -1 popped`, want: "hello"},
			{name: "publish and subscribe", command: `redis-cli -h $HOST subscribe news-$UNIQUE >got & until [ "$(redis-cli -h $HOST publish news-$UNIQUE hello)" = 1 ]; do sleep 0.1; done; until grep -q hello got; do sleep 0.1; done; kill $!; tail -1 got`, want: "hello"},
			{name: "50 connections", command: `redis-benchmark -h $HOST -c 50 -n 2000 -t set -q | tr '\r' '\n' | grep -c 'requests per second'`, want: "1"},
		},
		session: `every 'client id' | redis-cli -h $HOST 2>&1 | same`,
	},
	{
		name: "postgres", program: "PostgreSQL", few: true, file: "usr/lib/postgresql/15/bin/postgres",
		ports:  []port{{number: 5432, appProtocol: "postgresql"}},
		advice: "`appProtocol: postgresql` or `tcp`. The server sees all clients at 127.0.0.6: rules of `pg_hba.conf` that name the clients' addresses do not match.",
		checks: []check{
			{name: "a query", command: `psql -c "select sum(n) from generate_series(1, 100000) n"`, want: "5000050000"},
			{name: "the server's own TLS", command: `PGSSLMODE=require psql -c "select ssl from pg_stat_ssl where pid = pg_backend_pid()"`, want: "t"},
			{name: "copy 10 MB out", command: `psql -c "copy (select repeat('a', 99) from generate_series(1, 100000)) to stdout" | wc -c`, want: "10000000"},
			{name: "copy 10 MB in", command: `head -c 10000000 /dev/zero | tr '\0' a | fold -w 99 >in; psql -c "create temp table t (a text)" -c "copy t from stdin" -c "select sum(length(a)) from t" <in | tail -1`, want: "10000000"},
			{name: "an error", command: `psql -c "select 1/0" 2>&1`, want: "ERROR:  division by zero"},
			{name: "a query is cancelled", command: `timeout -s INT 1 psql -c "select pg_sleep(60)" 2>&1 | grep -o 'canceling.*'`, want: "canceling statement due to user request"},
			{name: "listen and notify", command: `psql -c "listen news" -c "notify news, 'hello'" | grep -o 'payload "hello"'`, want: "payload \"hello\""},
			{name: "pgbench with 4 connections", command: `pgbench -n -c 4 -t 50 -f /apps/pgbench.sql 2>&1 | grep -e processed -e failed`, want: "number of transactions actually processed: 200/200\nnumber of failed transactions: 0 (0.000%)"},
		},
		session: `every 'select pg_backend_pid();' | psql 2>&1 | same`,
	},
	{
		name: "mariadb", program: "MariaDB", file: "usr/sbin/mariadbd",
		ports:  []port{{number: 3306, appProtocol: "mysql"}},
		advice: "`appProtocol: mysql` or `tcp-server-first`. The server sees all clients at 127.0.0.6: grants such as `app@'10.%'` do not match.",
		checks: []check{
			{name: "a query", command: `mariadb -e "select sum(seq) from seq_1_to_100000"`, want: "5000050000"},
			{name: "the server's own TLS", command: `mariadb --ssl -e "show status like 'Ssl_version'"`, want: "Ssl_version\tTLSv1.3"},
			{name: "10 MB out", command: `mariadb -e "select repeat('a', 99) from seq_1_to_100000" | wc -c`, want: "10000000"},
			{name: "10 MB in", command: `head -c 9900000 /dev/zero | tr '\0' a | fold -w 99 >in; mariadb --local-infile=1 -e "create temporary table t (a text); load data local infile 'in' into table t; select sum(length(a)) from t"`, want: "9900000"},
			{name: "compression", command: `mariadb --compress -e "select length(repeat('a', 1000000)); show status like 'Compression'"`, want: "1000000\nCompression\tON"},
			{name: "an error", command: `mariadb -e "select * from none" 2>&1 | grep -o 'ERROR [0-9]*'`, want: "ERROR 1146"},
			{name: "mariadb-slap with 4 connections", command: `mariadb-slap --no-defaults -h $HOST -u app --create-schema=$UNIQUE --auto-generate-sql --concurrency=4 --number-of-queries=200 --silent 2>&1; echo $?`, want: "0"},
		},
		session: `every 'select connection_id();' | mariadb --unbuffered --skip-reconnect 2>&1 | same`,
	},
	{
		name: "etcd", program: "etcd (three members, with their own TLS)", file: "usr/bin/etcd", replicas: 3,
		ports: []port{{number: 2379, appProtocol: "tcp"}, {number: 2380, appProtocol: "tcp"}},
		advice: "`appProtocol: tcp` for both ports. Members see each other at 127.0.0.6, so with `--peer-client-cert-auth` alone they refuse each other: " +
			"add `--experimental-peer-skip-client-san-verification`, with which they still verify the certificates, but not the addresses.",
		checks: []check{
			{name: "a value", command: `etcdctl put $UNIQUE hello; etcdctl get $UNIQUE --print-value-only`, want: "OK\nhello"},
			{name: "all members", command: `etcdctl endpoint health --cluster 2>&1 | grep -c 'is healthy'`, want: "3"},
			{name: "a value of 1 MB to one member, read from another", command: `head -c 1000000 /dev/zero | tr '\0' a | ETCDCTL_ENDPOINTS=https://etcd-0.$HOST:2379 etcdctl put $UNIQUE; ETCDCTL_ENDPOINTS=https://etcd-2.$HOST:2379 etcdctl get $UNIQUE --print-value-only | wc -c`, want: "OK\n1000001"},
			{name: "a watch", command: `: >got; etcdctl watch $UNIQUE >got & until grep -q hello got; do etcdctl put $UNIQUE hello >put; sleep 0.2; done; kill $!; head -1 got`, want: "PUT"},
			{name: "a lease that ends", command: `lease=$(etcdctl lease grant 2 | cut -d' ' -f2); etcdctl put $UNIQUE hello --lease=$lease; sleep 5; etcdctl get $UNIQUE --write-out=fields | grep Count`, want: "OK\n\"Count\" : 0"},
		},
		// A watch that lost its connection would be made again, but the numbers of writes and events would differ.
		session: `: >seen; etcdctl watch $UNIQUE >seen & sleep 1; n=0
while [ ! -e $STOP ]; do
	etcdctl put $UNIQUE $n >put 2>&1 || { echo ended; kill %1; exit; }
	n=$((n + 1)); sleep 1
done
sleep 1; kill %1; [ $(grep -c PUT seen) -eq $n ] && echo kept`,
	},
	{
		name: "zookeeper", program: "ZooKeeper", file: "usr/share/java/zookeeper.jar",
		ports:  []port{{number: 2181, appProtocol: "tcp"}},
		advice: "`appProtocol: tcp`.",
		checks: []check{
			{name: "a node", command: `zk create /$UNIQUE hello | grep -c Created; zk get /$UNIQUE | grep hello`, want: "1\nhello"},
			{name: "a node of a client that ends", command: `printf 'create -e /%s hello\nls /\nquit\n' $UNIQUE | zk | grep -o "^.zookeeper.*$UNIQUE\|^.*$UNIQUE.*zookeeper" | wc -l; zk ls / | grep -c $UNIQUE`, want: "1\n0"},
			{name: "a watch", command: `(echo "create /$UNIQUE a"; echo "get -w /$UNIQUE"; sleep 1; echo "set /$UNIQUE b"; sleep 1) | zk | grep -o NodeDataChanged`, want: "NodeDataChanged"},
			{name: "a four-letter word", command: `exec 3<>/dev/tcp/$HOST/2181; printf ruok >&3; cat <&3`, want: "imok"},
		},
		// Without its server the client does not end when its input does.
		session: `same < <(every 'ls /zookeeper' | zk 2>/dev/null | grep --line-buffered -o -e '^\[.*\]$' -e state:Disconnected -e ConnectionLoss 2>/dev/null)`,
	},
}
