package record

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/outrigger-mesh/outrigger/internal/agent/kit"
	"github.com/outrigger-mesh/outrigger/internal/protofield"
	"github.com/outrigger-mesh/outrigger/sidecar/agentspec"
)

// finishedSpan is a span that a collector accepts.
type finishedSpan struct {
	agentspec.Span
	start, end uint64 // microseconds since 1970
}

// finished checks a span: a collector rejects all spans of a request with a bad one.
func finished(s agentspec.Span) (*finishedSpan, error) {
	start, err := strconv.ParseUint(s.Start, 10, 63)
	end, err2 := strconv.ParseUint(s.End, 10, 63)
	trace := len(s.TraceID)
	switch {
	case err != nil || err2 != nil:
		return nil, fmt.Errorf("its times are %q and %q", s.Start, s.End)
	case !isHex(s.TraceID) || trace != 16 && trace != 32, !isHex(s.ID) || len(s.ID) != 16, s.ParentID != "" && (!isHex(s.ParentID) || len(s.ParentID) != 16):
		return nil, fmt.Errorf("its ids are %q, %q and %q", s.TraceID, s.ID, s.ParentID)
	case spanKinds[s.Kind] == 0:
		return nil, fmt.Errorf("its kind is %q", s.Kind)
	}
	return &finishedSpan{s, start, max(start+1, end)}, nil
}

func isHex(text string) bool {
	_, err := hex.DecodeString(text)
	return err == nil
}

// tags returns the tags of a span, with those that all spans have.
func (s *finishedSpan) tags(all map[string]string) map[string]string {
	tags := maps.Clone(all)
	if tags == nil {
		tags = make(map[string]string)
	}
	for name, value := range s.Tags {
		if value != "" {
			tags[name] = strings.ToValidUTF8(value, "?")
		}
	}
	if s.Status >= 100 {
		tags["http.status_code"] = strconv.Itoa(s.Status)
	}
	if s.failed() {
		tags["error"] = "true"
	}
	return tags
}

func (s *finishedSpan) failed() bool { return s.Status < 100 || s.Status >= 500 }

// spanSender sends spans to one collector.
type spanSender interface {
	send(ctx context.Context, spans []*finishedSpan) error
	close()
}

func newSpanSender(c agentspec.Collector) (spanSender, error) {
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		return nil, fmt.Errorf("the collector's address: %w", err)
	}
	switch c.Protocol {
	case "zipkin":
		// The environment's HTTP proxy is for the application.
		return &zipkin{c, &http.Client{Transport: &http.Transport{}}}, nil
	case "otlp":
		conn, err := grpc.NewClient("dns:///"+c.Address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
			grpc.WithDisableServiceConfig(), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(kit.RawCodec{})))
		if err != nil {
			return nil, err
		}
		return &otlp{c, conn}, nil
	}
	return nil, fmt.Errorf("the protocol is %q; this agent knows zipkin and otlp", c.Protocol)
}

// zipkin sends spans as JSON, version 2.
type zipkin struct {
	collector agentspec.Collector
	client    *http.Client
}

type zipkinSpan struct {
	TraceID   string            `json:"traceId"`
	ID        string            `json:"id"`
	ParentID  string            `json:"parentId,omitempty"`
	Kind      string            `json:"kind"`
	Shared    bool              `json:"shared,omitempty"`
	Name      string            `json:"name,omitempty"`
	Timestamp uint64            `json:"timestamp"`
	Duration  uint64            `json:"duration"`
	Local     zipkinEndpoint    `json:"localEndpoint"`
	Tags      map[string]string `json:"tags"`
}

type zipkinEndpoint struct {
	ServiceName string `json:"serviceName"`
	IPv4        string `json:"ipv4,omitempty"`
	IPv6        string `json:"ipv6,omitempty"`
}

func (z *zipkin) send(ctx context.Context, spans []*finishedSpan) error {
	local := zipkinEndpoint{ServiceName: z.collector.Service}
	if ip, err := netip.ParseAddr(z.collector.IP); err == nil && ip.Is4() {
		local.IPv4 = ip.String()
	} else if err == nil {
		local.IPv6 = ip.String()
	}
	out := make([]zipkinSpan, len(spans))
	for i, s := range spans {
		out[i] = zipkinSpan{
			TraceID: s.TraceID, ID: s.ID, ParentID: s.ParentID, Kind: s.Kind, Shared: s.Shared != "", Name: s.Name,
			Timestamp: s.start, Duration: s.end - s.start, Local: local, Tags: s.tags(z.collector.Tags),
		}
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	to := url.URL{Scheme: "http", Host: z.collector.Address, Path: cmp.Or(z.collector.Path, "/api/v2/spans")}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := z.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10))
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return fmt.Errorf("%s answered %s", to.String(), response.Status)
	}
	return nil
}

func (z *zipkin) close() { z.client.CloseIdleConnections() }

// otlp sends spans to OpenTelemetry's collector by gRPC. It encodes messages by hand, like the
// secrets; the field numbers are from opentelemetry/proto/trace/v1/trace.proto.
type otlp struct {
	collector agentspec.Collector
	conn      *grpc.ClientConn
}

const otlpExport = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

// spanKinds are the numbers of the kinds of spans, and spanError that of a status.
var spanKinds = map[string]uint64{"SERVER": 2, "CLIENT": 3}

const spanError = 2

func (o *otlp) send(ctx context.Context, spans []*finishedSpan) error {
	var scope []byte
	for _, s := range spans {
		scope = kit.AppendField(scope, 2, o.span(s))
	}
	resource := kit.AppendField(nil, 1, attribute("service.name", o.collector.Service))
	request := kit.AppendField(nil, 1, kit.AppendField(kit.AppendField(nil, 1, resource), 2, scope))
	var answer []byte
	if err := o.conn.Invoke(ctx, otlpExport, &request, &answer); err != nil {
		return err
	}
	return rejection(answer)
}

// rejection returns an error if an answer says that spans were rejected.
func rejection(answer []byte) error {
	return protofield.Each(answer, func(number protowire.Number, partial []byte) error {
		if number != 1 || len(partial) == 0 {
			return nil
		}
		text := ""
		err := protofield.Each(partial, func(number protowire.Number, value []byte) error {
			text = string(value)
			return nil
		})
		// Without a number of rejected spans, the text is only a warning.
		if tag, _, n := protowire.ConsumeTag(partial); n < 0 || tag != 1 {
			return err
		}
		return errors.Join(err, fmt.Errorf("the collector rejects spans: %s", text))
	})
}

func (o *otlp) span(s *finishedSpan) []byte {
	trace, _ := hex.DecodeString(strings.Repeat("0", 32-len(s.TraceID)) + s.TraceID)
	id, _ := hex.DecodeString(s.ID)
	b := kit.AppendField(kit.AppendField(nil, 1, trace), 2, id)
	if parent, _ := hex.DecodeString(s.ParentID); len(parent) > 0 {
		b = kit.AppendField(b, 4, parent)
	}
	b = kit.AppendField(b, 5, []byte(strings.ToValidUTF8(s.Name, "?")))
	b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), spanKinds[s.Kind])
	b = protowire.AppendFixed64(protowire.AppendTag(b, 7, protowire.Fixed64Type), s.start*1000)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 8, protowire.Fixed64Type), s.end*1000)
	tags := s.tags(o.collector.Tags)
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		b = kit.AppendField(b, 9, attribute(name, tags[name]))
	}
	if s.failed() {
		b = kit.AppendField(b, 15, protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), spanError))
	}
	return b
}

// attribute returns a KeyValue with a text.
func attribute(key, text string) []byte {
	return kit.AppendField(kit.AppendField(nil, 1, []byte(key)), 2, kit.AppendField(nil, 1, []byte(text)))
}

func (o *otlp) close() { _ = o.conn.Close() }
