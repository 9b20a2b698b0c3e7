# Members and clients verify each other by certificates of one authority. A member also compares the
# address of another, which is its sidecar's, with the names of the certificate, unless the last option is set.
name=$(hostname)
domain=etcd.$NAMESPACE
cluster=
for n in 0 1 2; do
	cluster=$cluster${cluster:+,}etcd-$n=https://etcd-$n.$domain:2380
done
openssl req -x509 -CA /authority/ca.crt -CAkey /authority/ca.key -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 \
	-subj "/CN=$name" -addext "subjectAltName=DNS:$name.$domain,DNS:$domain" -addext basicConstraints=CA:false \
	-keyout /tmp/etcd.key -out /tmp/etcd.crt 2>/dev/null
exec etcd --name "$name" --data-dir /tmp/data --initial-cluster "$cluster" --initial-cluster-token "$NAMESPACE" \
	--listen-peer-urls https://0.0.0.0:2380 --initial-advertise-peer-urls "https://$name.$domain:2380" \
	--peer-cert-file /tmp/etcd.crt --peer-key-file /tmp/etcd.key --peer-trusted-ca-file /authority/ca.crt \
	--listen-client-urls https://0.0.0.0:2379 --advertise-client-urls "https://$name.$domain:2379" \
	--cert-file /tmp/etcd.crt --key-file /tmp/etcd.key \
	--log-level warn --peer-client-cert-auth --experimental-peer-skip-client-san-verification
