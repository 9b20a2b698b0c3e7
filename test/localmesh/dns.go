package localmesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
)

// clusterDomain is the domain of the names of services.
const clusterDomain = "cluster.local"

// resolvConf is the lab's Options.ResolvConf with a DNS server: as a kubelet writes it.
func (m *Mesh) resolvConf(pod *corev1.Pod) string {
	return fmt.Sprintf("nameserver %s\nsearch %s.svc.%s svc.%s %s\noptions ndots:5\n",
		nodeAddresses[0].Addr(), pod.Namespace, clusterDomain, clusterDomain, clusterDomain)
}

// startDNS starts the DNS server on the node. It ends when its socket is closed.
func (m *Mesh) startDNS() error {
	err := m.lab.Node().Do(func() error {
		var err error
		m.dns, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp", net.JoinHostPort(nodeAddresses[0].Addr().String(), "53"))
		return err
	})
	if err != nil {
		return fmt.Errorf("starting the DNS server: %w", err)
	}
	m.tasks.Go(m.serveDNS)
	return nil
}

func (m *Mesh) serveDNS() {
	question := make([]byte, 64<<10)
	for {
		n, from, err := m.dns.ReadFrom(question)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if answer := answerDNS(question[:n], m.allHosts()); answer != nil {
			_, _ = m.dns.WriteTo(answer, from)
		}
	}
}

const (
	// maxDNS is the length of an answer that all clients accept.
	maxDNS = 512
	// lifetime is that of an answer, in seconds.
	lifetime = 5
)

// answerDNS returns the answer to a question for the addresses of a name, or nil if the question
// cannot be read. Names outside of the cluster do not exist.
func answerDNS(question []byte, hosts map[string][]netip.Addr) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(question)
	if err != nil || header.Response {
		return nil
	}
	asked, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(asked.Name.String(), "."))
	addresses, found := hosts[name]
	answer := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true, RecursionDesired: header.RecursionDesired, RecursionAvailable: true,
		},
		Questions: []dnsmessage.Question{asked},
	}
	if !found || asked.Class != dnsmessage.ClassINET {
		answer.RCode, addresses = dnsmessage.RCodeNameError, nil
	}
	for _, address := range addresses {
		address = address.Unmap()
		resource := dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: asked.Name, Class: dnsmessage.ClassINET, TTL: lifetime}}
		switch {
		case address.Is4() && asked.Type == dnsmessage.TypeA:
			resource.Body = &dnsmessage.AResource{A: address.As4()}
		case address.Is6() && asked.Type == dnsmessage.TypeAAAA:
			resource.Body = &dnsmessage.AAAAResource{AAAA: address.As16()}
		default:
			continue
		}
		answer.Answers = append(answer.Answers, resource)
	}
	for {
		packed, err := answer.Pack()
		if err != nil {
			return nil
		}
		if len(packed) <= maxDNS || len(answer.Answers) == 0 {
			return packed
		}
		answer.Answers, answer.Truncated = answer.Answers[:len(answer.Answers)-1], true
	}
}
