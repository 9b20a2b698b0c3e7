// Command app is an ordinary gRPC application: a client or a server of the health service.
// In pods without a proxy it gets its configuration by xDS, and in others it uses plaintext,
// which the pod's proxy takes. It has a module of its own, since gRPC's xDS client needs
// many modules that nothing else here does.
//
//	app serve ADDRESS NAME   answers with the header "server: NAME"
//	app call TARGET          makes a call for each line, which is the path of a method
//	app answer ADDRESS       makes the calls that it is asked for by HTTP, see answer
package main

import (
	"log"
	"os"
)

func main() {
	log.SetFlags(0)
	var err error
	switch {
	case len(os.Args) == 4 && os.Args[1] == "serve":
		err = serve(os.Args[2], os.Args[3])
	case len(os.Args) == 3 && os.Args[1] == "call":
		err = callLines(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "answer":
		err = answer(os.Args[2])
	default:
		log.Fatal("usage: app serve ADDRESS NAME | app call TARGET | app answer ADDRESS")
	}
	if err != nil {
		log.Fatal(err)
	}
}
