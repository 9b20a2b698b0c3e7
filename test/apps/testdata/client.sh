# The functions of all clients.
PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin
export PGHOST=$HOST PGUSER=app PGDATABASE=postgres PGCONNECT_TIMEOUT=10
psql() { command psql -X -q -A -t "$@"; }
options='-F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o PreferredAuthentications=none'
mariadb() { command mariadb --no-defaults -h $HOST -u app -D shop -N -B "$@"; }
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=https://$HOST:2379 ETCDCTL_CACERT=/authority/ca.crt
zk() { (. /apps/java.sh; exec java -Xmx64m org.apache.zookeeper.ZooKeeperMain -server $HOST:2181 "$@" 2>&1); }
ssh() { command ssh $options -p 2222 "$@"; }
# every prints a line every 200 ms until the file $STOP exists, or the function same has returned.
every() {
	while [ ! -e "$STOP" ] && [ ! -e over ]; do
		echo "$1"
		sleep 0.2
	done
}
# same prints "kept" if all lines of its input are the same, and "ended" at the first that is
# not.
same() {
	answer=ended
	read -r first
	while read -r line && [ "$line" = "$first" ]; do
		[ ! -e "$STOP" ] || break
	done
	if [ -e "$STOP" ] && [ "${line:-$first}" = "$first" ]; then answer=kept; fi
	touch over
	echo "$answer"
}
cd "$(mktemp -d)" || exit
