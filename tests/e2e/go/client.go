package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "keyhole.dev/e2e/keyholev1"
)

// answer is what is printed: an answer, or why there is none.
type answer struct {
	Key     int       `json:"key"` // its number among the arguments: keys themselves don't belong in logs
	Found   bool      `json:"found"`
	Value   any       `json:"value,omitempty"`
	Epoch   uint64    `json:"epoch,omitempty"`
	Server  string    `json:"server,omitempty"`
	Role    string    `json:"role,omitempty"`
	Stale   bool      `json:"unconfirmed,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Error   string    `json:"error,omitempty"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
}

// refusal is Keyhole's own error: the reason, and what a person can do.
type refusal struct{ told *pb.Error }

func (r refusal) Error() string { return r.told.Message }

type client struct {
	channel    *grpc.ClientConn
	query      pb.QueryClient
	state      *pb.StateRef
	descriptor *pb.StateDescriptor
	stream     pb.Query_LookupClient
	endStream  context.CancelFunc
	frame      uint64
	timeout    time.Duration
}

func connect(target, application, state string, timeout time.Duration) (*client, error) {
	channel, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	ref := &pb.StateRef{Application: application, State: state}
	made := &client{channel: channel, query: pb.NewQueryClient(channel), state: ref, timeout: timeout}
	return made, nil
}

func (c *client) close() {
	c.drop()
	c.channel.Close()
}

// describe asks once how the state's keys and values are encoded, and again where the answer is out of date.
func (c *client) describe(ctx context.Context) error {
	if c.descriptor != nil {
		return nil
	}
	var trailer metadata.MD
	described, err := c.query.DescribeState(ctx, &pb.DescribeStateRequest{State: c.state}, grpc.WaitForReady(true), grpc.Trailer(&trailer))
	if err != nil {
		return told(err, trailer)
	}
	c.descriptor = described.Descriptor_
	return nil
}

func (c *client) read(ctx context.Context, method string, keys []string) ([]answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.describe(ctx); err != nil {
		return nil, err
	}
	typed := make([]*pb.Key, len(keys))
	for index, text := range keys {
		key, err := c.key(text)
		if err != nil {
			return nil, err
		}
		typed[index] = key
	}
	switch method {
	case "get":
		return c.get(ctx, typed)
	case "lookup", "lookup-bytes":
		answers, err := c.lookup(ctx, typed, method == "lookup-bytes")
		var refused refusal
		if errors.As(err, &refused) && refused.told.Reason == pb.Reason_REASON_STALE_DESCRIPTOR {
			c.descriptor = nil
		}
		return answers, err
	}
	return nil, fmt.Errorf("unknown method %q: it is get, lookup or lookup-bytes", method)
}

func (c *client) key(text string) (*pb.Key, error) {
	columns := append(append([]*pb.KeyColumn{}, c.descriptor.Key...), c.descriptor.MapKey...)
	texts := []string{text}
	if len(columns) > 1 {
		texts = strings.Split(text, ",")
	}
	if len(texts) != len(columns) {
		return nil, fmt.Errorf("a key of %s has %d columns, not %d", c.state.State, len(columns), len(texts))
	}
	key := &pb.Key{}
	for index, column := range columns {
		one, err := part(column, texts[index])
		if err != nil {
			return nil, err
		}
		key.Parts = append(key.Parts, one)
	}
	return key, nil
}

// get asks with typed keys, one call each, for values in JSON: nothing of Keyhole's encodings is needed.
func (c *client) get(ctx context.Context, keys []*pb.Key) ([]answer, error) {
	options := &pb.ReadOptions{Format: pb.ValueFormat_VALUE_FORMAT_JSON}
	var answers []answer
	for index, key := range keys {
		var trailer metadata.MD
		request := &pb.GetRequest{State: c.state, Key: key, Options: options}
		response, err := c.query.Get(ctx, request, grpc.WaitForReady(true), grpc.Trailer(&trailer))
		if err != nil {
			return nil, told(err, trailer)
		}
		one := from(index, response.Answer.Source)
		if one.Found = response.Answer.Found; one.Found {
			one.Value = json.RawMessage(response.Answer.Value)
		}
		answers = append(answers, one)
	}
	return answers, nil
}

// lookup sends all keys in one frame of the stream, and reads MessagePack rows.
func (c *client) lookup(ctx context.Context, keys []*pb.Key, asBytes bool) ([]answer, error) {
	response, err := c.exchange(ctx, keys, asBytes)
	if err != nil {
		c.drop()
		return nil, err
	}
	answers := make([]answer, len(keys))
	for index, value := range response.Values {
		source := 0
		if len(response.SourceOf) > 0 {
			source = int(response.SourceOf[index])
		}
		if source < len(response.Sources) {
			answers[index] = from(index, response.Sources[source])
		}
		if len(value) == 0 {
			continue
		}
		fields, err := row(c.descriptor, value)
		if err != nil {
			return nil, err
		}
		answers[index].Found, answers[index].Value = true, fields
	}
	for _, failed := range response.Failures {
		if len(failed.Indexes) == 0 {
			return nil, refusal{failed.Error}
		}
		for _, index := range failed.Indexes {
			one := failure(refusal{failed.Error})
			one.Key = int(index)
			answers[index] = one
		}
	}
	return answers, nil
}

func (c *client) exchange(ctx context.Context, keys []*pb.Key, asBytes bool) (*pb.LookupResponse, error) {
	if c.stream == nil {
		streaming, cancel := context.WithCancel(context.Background())
		stream, err := c.query.Lookup(streaming, grpc.WaitForReady(true))
		if err != nil {
			cancel()
			return nil, told(err, nil)
		}
		c.stream, c.endStream = stream, cancel
	}
	// The stream lives longer than a frame: a frame that is not answered in time ends it.
	defer context.AfterFunc(ctx, c.endStream)()
	c.frame++
	request := &pb.LookupRequest{Frame: c.frame, State: c.state, TimeoutMs: uint32(c.timeout.Milliseconds())}
	if asBytes {
		request.TopicId = c.descriptor.TopicId
		for _, key := range keys {
			request.StorageKeys = append(request.StorageKeys, storageKey(c.descriptor, key.Parts))
		}
	} else {
		request.Keys = keys
	}
	if err := c.stream.Send(request); err != nil {
		// What broke the stream is told by Recv.
		if _, err = c.stream.Recv(); err == nil {
			err = errors.New("the stream ended while a frame was sent")
		}
		return nil, told(err, c.stream.Trailer())
	}
	for {
		response, err := c.stream.Recv()
		if err != nil {
			return nil, told(err, c.stream.Trailer())
		}
		// Frames may be answered in any order; here only one is under way.
		if response.Frame == c.frame {
			return response, nil
		}
	}
}

func (c *client) drop() {
	if c.stream != nil {
		c.endStream()
		c.stream = nil
	}
}

func from(index int, source *pb.Source) answer {
	return answer{
		Key:    index,
		Epoch:  source.Epoch,
		Server: source.Server,
		Role:   strings.ToLower(strings.TrimPrefix(source.Role.String(), "ROLE_")),
		Stale:  source.Unconfirmed,
	}
}

// told is Keyhole's own error where the trailing metadata have one, else gRPC's.
func told(err error, trailer metadata.MD) error {
	for _, encoded := range trailer.Get("keyhole-error-bin") {
		var own pb.Error
		if proto.Unmarshal([]byte(encoded), &own) == nil {
			return refusal{&own}
		}
	}
	return err
}

func failure(err error) answer {
	var own refusal
	if errors.As(err, &own) {
		return answer{Reason: strings.TrimPrefix(own.told.Reason.String(), "REASON_"), Error: own.told.Message}
	}
	if grpcs, ok := status.FromError(err); ok && err != nil {
		return answer{Reason: grpcs.Code().String(), Error: grpcs.Message()}
	}
	return answer{Reason: "CLIENT", Error: err.Error()}
}
