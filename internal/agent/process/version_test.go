package process

import "testing"

func TestVersionIn(t *testing.T) {
	for text, want := range map[string]string{
		"HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\nStatus: Q2 2027.\n":                                                                                       "2.6.12-1+deb12u4",
		"Version          : 1.5.18\nOpenSSL          : OpenSSL 3.2.0 23 Nov 2023\n":                                                                                                    "1.5.18 OpenSSL 3.2.0",
		"HAProxy version 3.0.11 2026/10/15\nBuilt with OpenSSL version : OpenSSL 3.5.8 1 Sep\nRunning on OpenSSL version : OpenSSL 3.5.9 29 Sep\nOpenSSL library supports SNI : yes\n": "3.0.11 OpenSSL 3.5.9",
		"OpenSSL 3.5.9": "3.5.9 OpenSSL 3.5.9",
		"/usr/bin/envoy  version: abc/1.40.0/Clean": "",
		"no version":    "",
		"ends. here 7.": "",
		"":              "",
	} {
		if got := versionIn(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
