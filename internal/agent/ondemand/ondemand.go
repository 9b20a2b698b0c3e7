// Package ondemand lets a pod call destinations that its proxy does not know yet. It takes such
// connections from the proxy, asks the controller about the destinations, and hands them back
// once the proxy knows them. It imports the kit only, and asks by the function that it is given.
package ondemand
