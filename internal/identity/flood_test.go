package identity_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	identityv1 "github.com/outrigger-mesh/outrigger/apis/identity/v1"
	"github.com/outrigger-mesh/outrigger/internal/identity"
	"github.com/outrigger-mesh/outrigger/internal/identity/issuer"
)

// webToken returns an unsigned JSON Web Token with these claims.
func webToken(claims string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
}

// TestScreen checks that most invalid tokens are rejected by their claims alone.
func TestScreen(t *testing.T) {
	t.Parallel()
	later, before := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	for name, token := range map[string]string{
		"nothing":            "",
		"rubbish":            "rubbish",
		"two parts":          "a.b",
		"four parts":         webToken(fmt.Sprintf(`{"aud":["outrigger"],"exp":%d}`, later)) + ".x",
		"no base64":          "a.%%%.c",
		"no JSON":            webToken(`outrigger`),
		"a list":             webToken(`["outrigger"]`),
		"no claims":          webToken(`{}`),
		"no audience":        webToken(fmt.Sprintf(`{"exp":%d}`, later)),
		"another audience":   webToken(fmt.Sprintf(`{"aud":["vault"],"exp":%d}`, later)),
		"others in a string": webToken(fmt.Sprintf(`{"aud":"outrigger,vault","exp":%d}`, later)),
		"an odd audience":    webToken(fmt.Sprintf(`{"aud":{"outrigger":1},"exp":%d}`, later)),
		"its end":            webToken(fmt.Sprintf(`{"aud":["outrigger"],"exp":%d}`, before)),
		"no end":             webToken(`{"aud":["outrigger"]}`),
		"an odd end":         webToken(`{"aud":["outrigger"],"exp":"never"}`),
		"an end long ago":    webToken(`{"aud":["outrigger"],"exp":-1e300}`),
	} {
		if err := (identity.KubeReviewer{}).Screen(token); !errors.Is(err, identity.ErrToken) {
			t.Errorf("%s: %v, want ErrToken", name, err)
		}
	}
	for name, token := range map[string]string{
		"good":              webToken(fmt.Sprintf(`{"aud":["outrigger"],"exp":%d,"kubernetes.io":{"namespace":"shop"}}`, later)),
		"several audiences": webToken(fmt.Sprintf(`{"aud":["vault","outrigger"],"exp":%d}`, later)),
		"one audience":      webToken(fmt.Sprintf(`{"aud":"outrigger","exp":%d}`, later)),
		"a clock apart":     webToken(fmt.Sprintf(`{"aud":["outrigger"],"exp":%d}`, time.Now().Add(-time.Minute).Unix())),
		"an end far away":   webToken(`{"aud":["outrigger"],"exp":1e300}`),
	} {
		if err := (identity.KubeReviewer{}).Screen(token); err != nil {
			t.Errorf("%s: %v, want nil", name, err)
		}
	}
}

func FuzzScreen(f *testing.F) {
	f.Add(webToken(`{"aud":["outrigger"],"exp":1e300}`))
	f.Fuzz(func(t *testing.T, token string) {
		if err := (identity.KubeReviewer{}).Screen(token); err != nil && !errors.Is(err, identity.ErrToken) {
			t.Errorf("%q: %v, want ErrToken", token, err)
		}
	})
}

// TestServiceIsFlooded lets unauthenticated clients send invalid tokens as fast as they can.
// Obviously invalid ones must cause no request to the API server, and plausible ones only a
// few. Pods must get their certificates meanwhile.
func TestServiceIsFlooded(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(time.Hour).Unix()
	good := webToken(fmt.Sprintf(`{"aud":["outrigger"],"exp":%d,"good":true}`, end))
	garbage := webToken(fmt.Sprintf(`{"aud":["kubernetes"],"exp":%d}`, end))
	forged := webToken(fmt.Sprintf(`{"aud":["outrigger"],"exp":%d,"good":false}`, end))
	client := fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: shopper.Namespace, Name: shopper.Pod, UID: "7d8a3c"}, Spec: corev1.PodSpec{ServiceAccountName: shopper.ServiceAccount},
	})
	var mu sync.Mutex
	reviewed := map[string]int{}
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		token := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).Spec.Token
		mu.Lock()
		defer mu.Unlock()
		reviewed[token]++
		status := authenticationv1.TokenReviewStatus{}
		if token == good {
			status = authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: []string{"outrigger"}, User: authenticationv1.UserInfo{
					Username: "system:serviceaccount:shop:web.v1", Extra: map[string]authenticationv1.ExtraValue{
						"authentication.kubernetes.io/pod-name": {shopper.Pod}, "authentication.kubernetes.io/pod-uid": {shopper.PodUID},
					},
				},
			}
		}
		return true, &authenticationv1.TokenReview{Status: status}, nil
	})
	s := serve(t, identity.ServiceOptions{Manager: run(t, identity.Options{}, newIssuer(t, "a")), Reviewer: identity.KubeReviewer{Client: client}})

	ctx, cancel := context.WithCancel(t.Context())
	var flood sync.WaitGroup
	var sent atomic.Int64
	began := time.Now()
	const addresses = 4
	for i := range addresses {
		client := s.clientFrom(t, net.IPv4(127, 0, 0, byte(2+i)))
		for _, token := range []string{garbage, forged} {
			flood.Go(func() {
				for ctx.Err() == nil {
					_, _ = client.Sign(bearer(ctx, token), &identityv1.SignRequest{})
					sent.Add(1)
				}
			})
		}
	}
	csr, _ := request(t, shopper)
	pod := s.client(t)
	for i := range 40 {
		call, done := context.WithTimeout(bearer(t.Context(), good), 10*time.Second)
		if _, err := pod.Sign(call, &identityv1.SignRequest{Csr: csr}); err != nil {
			t.Errorf("a pod's request %d: %v", i, err)
		}
		done()
		time.Sleep(25 * time.Millisecond)
	}
	cancel()
	flood.Wait()
	mu.Lock()
	defer mu.Unlock()
	t.Logf("of %d unauthenticated requests within %s the API server received %d", sent.Load(), time.Since(began), reviewed[garbage]+reviewed[forged])
	if reviewed[garbage] > 0 {
		t.Errorf("the API server was asked %d times about tokens for another audience", reviewed[garbage])
	}
	if most := addresses * (32 + int(time.Since(began).Seconds()) + 1); reviewed[forged] > most || reviewed[forged] == 0 {
		t.Errorf("the API server was asked %d times about forged tokens, want at most %d", reviewed[forged], most)
	}
}

// clientFrom is client with connections from an address.
func (s *service) clientFrom(t testing.TB, address net.IP) identityv1.IdentityClient {
	t.Helper()
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: address}}
	conn, err := grpc.NewClient(s.address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{ServerName: serverName, RootCAs: pool(t, s.manager.TrustBundle())})),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return from.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return identityv1.NewIdentityClient(conn)
}

// TestOutageIsForgiven lets one address retry during an outage of the API server, as the
// agents of a node do: its limit must not be used up afterwards.
func TestOutageIsForgiven(t *testing.T) {
	t.Parallel()
	key := loadTokenKey(t, t.TempDir())
	var away, waits atomic.Bool
	s := serve(t, identity.ServiceOptions{
		Manager: run(t, identity.Options{}, newIssuer(t, "a")),
		Reviewer: reviewFunc(func(ctx context.Context, token string) (identity.Workload, error) {
			if waits.Load() {
				<-ctx.Done()
			}
			if away.Load() {
				return identity.Workload{}, fmt.Errorf("%w: the API server does not answer", issuer.ErrUnavailable)
			}
			return key.Review(ctx, token)
		}),
	})
	client := s.client(t)
	csr, _ := request(t, shopper)
	ctx := bearer(t.Context(), mint(t, key, claims(shopper)))
	away.Store(true)
	for i := range 200 {
		_, err := client.Sign(ctx, &identityv1.SignRequest{Csr: csr})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the API server does not answer") {
			t.Fatalf("request %d ends with %v", i, err)
		}
	}
	for i := range 200 {
		if _, err := client.Report(ctx, &identityv1.ReportRequest{}); !strings.Contains(fmt.Sprint(err), "the API server does not answer") {
			t.Fatalf("report %d ends with %v", i, err)
		}
	}
	away.Store(false)
	if _, err := client.Sign(ctx, &identityv1.SignRequest{Csr: csr}); err != nil {
		t.Errorf("when the API server is back: %v", err)
	}

	// A caller that cancels makes any answer come too late.
	away.Store(true)
	waits.Store(true)
	for range 40 {
		brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		_, _ = client.Sign(brief, &identityv1.SignRequest{Csr: csr})
		cancel()
	}
	waits.Store(false)
	if _, err := client.Sign(ctx, &identityv1.SignRequest{Csr: csr}); err == nil || !strings.Contains(err.Error(), "too many requests, or too many refused ones") {
		t.Errorf("after 40 requests that the caller did not wait for: %v", err)
	}
}

// TestServiceKeepsConnections has more pods than connections call at once: those that are being
// served are not cut off for others, which are refused until there is room.
func TestServiceKeepsConnections(t *testing.T) {
	t.Parallel()
	const room = 16
	key := loadTokenKey(t, t.TempDir())
	reviewing, proceed := make(chan bool, 2*room), make(chan bool)
	s := serve(t, identity.ServiceOptions{
		Manager: run(t, identity.Options{}, newIssuer(t, "a")), MaxConnections: room,
		Reviewer: reviewFunc(func(ctx context.Context, token string) (identity.Workload, error) {
			reviewing <- true
			select {
			case <-proceed:
			case <-ctx.Done():
			}
			return key.Review(ctx, token)
		}),
	})
	csr, _ := request(t, shopper)
	ctx := bearer(t.Context(), mint(t, key, claims(shopper)))
	sign := func(address byte) error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := s.clientFrom(t, net.IPv4(127, 0, 1, address)).Sign(ctx, &identityv1.SignRequest{Csr: csr})
		return err
	}
	served := make(chan error, room)
	for i := range room {
		go func() { served <- sign(byte(i + 1)) }()
	}
	for range room {
		<-reviewing
	}
	for i := range room {
		if err := sign(byte(i + 101)); status.Code(err) != codes.Unavailable {
			t.Errorf("without room: %v, want Unavailable", err)
			break
		}
	}
	close(proceed)
	for range room {
		if err := <-served; err != nil {
			t.Errorf("with a place: %v", err)
		}
	}
	if refused := gather(t, s.registry)["outrigger_identity_connections_refused_total"]; refused < room {
		t.Errorf("%v connections are counted as refused, want at least %d", refused, room)
	}
}
