package apps

// others are brokers of messages, and servers that speak first.
var others = []application{
	{
		name: "rabbitmq", program: "RabbitMQ", file: "usr/lib/rabbitmq/bin/rabbitmq-server",
		ports:  []port{{number: 5672, appProtocol: "amqp"}},
		advice: "`appProtocol: amqp` or `tcp`.",
		checks: []check{
			{name: "a message", command: `url=amqp://guest:guest@$HOST:5672; amqp-declare-queue -u $url -q q$UNIQUE -d >made; amqp-publish -u $url -r q$UNIQUE -b hello; amqp-get -u $url -q q$UNIQUE`, want: "hello"},
			{name: "100 messages with confirmations", command: `python3 /apps/amqp_client.py $HOST`, want: "100"},
		},
		session: `python3 /apps/amqp_client.py $HOST $STOP`,
	},
	{
		name: "mosquitto", program: "Mosquitto (MQTT)", file: "usr/sbin/mosquitto",
		ports:  []port{{number: 1883, appProtocol: "tcp"}},
		advice: "`appProtocol: tcp`.",
		checks: []check{
			{name: "a retained message", command: `mosquitto_pub -h $HOST -t t$UNIQUE -m hello -r -q 2; mosquitto_sub -h $HOST -t t$UNIQUE -q 2 -C 1 -W 20`, want: "hello"},
			{name: "1 MB", command: `head -c 1000000 /dev/zero >big; mosquitto_pub -h $HOST -t b$UNIQUE -f big -r -q 1; mosquitto_sub -h $HOST -t b$UNIQUE -N -C 1 -W 20 | wc -c`, want: "1000000"},
			{name: "the will of a client that dies", command: `mosquitto_sub -h $HOST -t w$UNIQUE -C 1 -W 30 >will & sub=$!; stdbuf -oL mosquitto_sub -h $HOST -t x -d --will-topic w$UNIQUE --will-payload died -k 5 >log & dies=$!; disown $dies; until grep -q SUBACK log; do sleep 0.2; done; kill -9 $dies; wait $sub; cat will`, want: "died"},
		},
	},
	{
		name: "openssh", program: "OpenSSH", file: "usr/sbin/sshd", root: true,
		ports:  []port{{number: 2222, appProtocol: "ssh"}},
		advice: "`appProtocol: ssh` or `tcp-server-first`.",
		checks: []check{
			{name: "a command", command: `ssh app@$HOST 'echo hello; exit 3'; echo $?`, want: "hello\n3"},
			{name: "10 MB in both directions", command: `head -c 10485760 /dev/zero | ssh app@$HOST cat | md5sum | cut -c-32`, want: "f1c9645dbc14efddc7d8a322685f26eb"},
			{name: "scp", command: `echo hello >a; scp -q -P 2222 $options a app@$HOST:/tmp/a$UNIQUE; ssh app@$HOST cat /tmp/a$UNIQUE`, want: "hello"},
		},
		session: `ssh app@$HOST 'while :; do echo still here; sleep 0.2; done' 2>&1 | same`,
	},
	{
		name: "smtp", program: "aiosmtpd (SMTP)", file: "usr/lib/python3/dist-packages/aiosmtpd/__init__.py",
		ports:  []port{{number: 2525, appProtocol: "smtp"}},
		advice: "`appProtocol: smtp` or `tcp-server-first`. The server sees all clients at 127.0.0.6: rules about the networks that may relay do not match.",
		checks: []check{
			{name: "a mail", command: `swaks --server $HOST --port 2525 --helo client.example --from a@shop.example --to b@shop.example --body hello 2>&1 | grep -c '^<-  [2-3]'`, want: "9"},
		},
		session: `python3 /apps/smtp_client.py $HOST $STOP`,
	},
	{
		name: "ftp", program: "vsftpd (FTP, passive mode)", file: "usr/sbin/vsftpd", root: true,
		ports:  []port{{number: 2121, appProtocol: "ftp"}, {number: 21000, appProtocol: "tcp-server-first", last: 21009}},
		advice: "`appProtocol: ftp` for the control port, `tcp-server-first` for each passive port, which the Service must list. Active mode does not work: the server would connect to its client, at an address that the sidecar hides.",
		checks: []check{
			{name: "a directory", command: `curl -sS -l ftp://$HOST:2121/`, want: "in\nlarge"},
			{name: "10 MB", command: `curl -sS ftp://$HOST:2121/large | md5sum | cut -c-32`, want: "f1c9645dbc14efddc7d8a322685f26eb"},
			{name: "an upload", command: `head -c 3000000 /dev/zero | curl -sS -T - ftp://$HOST:2121/in/$UNIQUE; curl -sS ftp://$HOST:2121/in/$UNIQUE | wc -c`, want: "3000000"},
		},
	},
}
