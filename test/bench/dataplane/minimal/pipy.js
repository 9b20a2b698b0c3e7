var identity = '{{.Identity}}'
var end = '-----END CERTIFICATE-----\n'
var tls = {
  minVersion: 'TLS1.3',
  certificate: {
    cert: new crypto.CertificateChain(os.readFile(identity + '/chain.pem')),
    key: new crypto.PrivateKey(os.readFile(identity + '/key.pem')),
  },
  trusted: os.readFile(identity + '/bundle.pem').toString().split(end).filter(part => part.length > 1).map(part => new crypto.Certificate(part + end)),
  verify: ok => ok,
  sni: '{{.ServerName}}' || undefined,
}
var accepted = 0
var $connection

var forward = pipeline($=>$
  .demuxHTTP().to($=>$
    .muxHTTP(() => $connection).to($=>$
      {{- if .ServerName}}
      .connectTLS(tls).to($=>$
        .connect('{{.Next}}:{{.NextPort}}')
      )
      {{- else}}
      .connect('{{.Next}}:{{.NextPort}}')
      {{- end}}
    )
  )
)

pipy.listen('0.0.0.0:{{.Listen}}', $=>$
  .onStart(() => void ($connection = ++accepted))
  {{- if .AcceptTLS}}
  .acceptTLS(tls).to(forward)
  {{- else}}
  .pipe(forward)
  {{- end}}
)

pipy.listen('127.0.0.1:{{.Ready}}', $=>$.serveHTTP(() => new Message({ status: 200 }, 'ready')))
