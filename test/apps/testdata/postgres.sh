PATH=/usr/lib/postgresql/15/bin:$PATH
initdb -D /tmp/data -U app --auth=trust --no-sync --locale=C -E UTF8 >/dev/null
# A sidecar connects from one address, whoever the client is.
clients=127.0.0.6/32
if [ "$NAMESPACE" = plain ]; then clients=all; fi
echo "host all all $clients trust" >>/tmp/data/pg_hba.conf
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=postgres -days 2 \
	-keyout /tmp/data/server.key -out /tmp/data/server.crt 2>/dev/null
exec postgres -D /tmp/data -c listen_addresses='*' -c unix_socket_directories=/tmp -c ssl=on -c shared_buffers=16MB \
	-c fsync=off -c max_connections=50 -c shared_memory_type=mmap -c dynamic_shared_memory_type=mmap
