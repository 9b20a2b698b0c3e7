// Package dashboard contains tests of the dashboard in a real browser.
package dashboard
