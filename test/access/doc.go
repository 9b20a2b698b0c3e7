// Package access compares the decisions of real proxies with those of package mesh. It generates
// policies and requests from a seed, sends the requests byte by byte through each proxy of this
// machine to an application, and asks the model about the same requests. It has tests only.
package access
