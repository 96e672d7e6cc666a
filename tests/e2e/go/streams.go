package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"

	"google.golang.org/grpc"

	pb "keyhole.dev/e2e/keyholev1"
)

// Scans of all keys, and watches, as docs/clients-reference.md and docs/watch.md tell them.

// found is what is printed of a scan's entry, or of a change that a watch tells.
type found struct {
	Key      []any  `json:"key"`
	MapKey   []any  `json:"map_key,omitempty"`
	Value    any    `json:"value"` // null: it was deleted
	Snapshot bool   `json:"snapshot,omitempty"`
	Epoch    uint64 `json:"epoch"`
	Server   string `json:"server,omitempty"`
}

// progress is what is printed behind the changes of a watch that are whole: a later watch goes on behind its token.
type progress struct {
	Token        string `json:"token"`
	SnapshotDone bool   `json:"snapshot_done"`
	Epoch        uint64 `json:"epoch"`
}

// wanted says which entries a scan or a watch is of.
type wanted struct {
	where  string // as max>30; empty: all
	prefix string // of the first column of the key, a text; empty: all
	limit  uint64 // of a scan; 0: all
}

// scan reads key group by key group; each is one call, as of one epoch.
func (c *client) scan(ctx context.Context, of wanted, tell func(any) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.describe(ctx); err != nil {
		return err
	}
	selection, start, stop, err := c.selected(of)
	if err != nil {
		return err
	}
	// Caps are of all calls with one number together.
	left, scan := of.limit, rand.Uint64()|1
	for group := range c.descriptor.KeyGroups {
		request := &pb.ScanRequest{
			State:     c.state,
			KeyGroup:  &pb.KeyGroupScan{KeyGroup: group, Start: start, Stop: stop},
			Limit:     left,
			TopicId:   c.descriptor.TopicId,
			Selection: selection,
			Scan:      scan,
		}
		count, err := c.keyGroup(ctx, request, tell)
		if err != nil {
			return err
		}
		if left -= min(left, count); of.limit > 0 && left == 0 {
			return nil
		}
	}
	return nil
}

func (c *client) keyGroup(ctx context.Context, request *pb.ScanRequest, tell func(any) error) (uint64, error) {
	stream, err := c.query.Scan(ctx, request, grpc.WaitForReady(true))
	if err != nil {
		return 0, told(err, nil)
	}
	var count uint64
	for {
		page, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return count, nil
		}
		if err != nil {
			return 0, told(err, stream.Trailer())
		}
		if request.Selection != nil && !page.Selected {
			return 0, fmt.Errorf("server %s knows of no selections", page.Source.GetServer())
		}
		for index, encoded := range page.MapKeys {
			one := found{Epoch: page.Source.Epoch, Server: page.Source.Server}
			if one.Key, one.MapKey, err = decodeKey(c.descriptor, encoded); err != nil {
				return 0, err
			}
			if one.Value, err = row(c.descriptor, page.Values[index]); err != nil {
				return 0, err
			}
			if err := tell(one); err != nil {
				return 0, err
			}
			count++
		}
	}
}

// watch tells rows, then changes, until the context is over or so many were told; 0: until the context is over.
func (c *client) watch(ctx context.Context, of wanted, keys []string, token string, most int, tell func(any) error) error {
	described, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if err := c.describe(described); err != nil {
		return err
	}
	request := &pb.WatchRequest{State: c.state, Token: token, Format: pb.ValueFormat_VALUE_FORMAT_JSON, TopicId: c.descriptor.TopicId}
	for _, text := range keys {
		key, err := c.key(text)
		if err != nil {
			return err
		}
		request.Keys = append(request.Keys, key)
	}
	var err error
	if request.Selection, request.Start, request.Stop, err = c.selected(of); err != nil {
		return err
	}
	streaming, end := context.WithCancel(ctx)
	defer end()
	stream, err := c.query.Watch(streaming, request, grpc.WaitForReady(true))
	if err != nil {
		return told(err, nil)
	}
	count := 0
	for {
		message, err := stream.Recv()
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return told(err, stream.Trailer())
		}
		if request.Selection != nil && !message.Selected {
			return errors.New("a server knows of no selections")
		}
		for _, changes := range message.Changes {
			for index, encoded := range changes.Keys {
				one := found{Snapshot: changes.Snapshot, Epoch: changes.Epoch}
				if one.Key, one.MapKey, err = decodeKey(c.descriptor, encoded); err != nil {
					return err
				}
				if value := changes.Values[index]; len(value) > 0 {
					one.Value = json.RawMessage(value)
				}
				if err := tell(one); err != nil {
					return err
				}
				count++
			}
		}
		if message.Token == "" {
			// Part of something whose end has yet to come.
			continue
		}
		if err := tell(progress{message.Token, message.SnapshotDone, message.Epoch}); err != nil {
			return err
		}
		if most > 0 && count >= most {
			return nil
		}
	}
}

// selected is what a request is given. A range goes with a selection, be it empty: older servers say nothing of ranges.
func (c *client) selected(of wanted) (*pb.Selection, []byte, []byte, error) {
	if of.where == "" && of.prefix == "" {
		return nil, nil, nil, nil
	}
	selection := &pb.Selection{}
	if of.where != "" {
		where, err := c.comparison(of.where)
		if err != nil {
			return nil, nil, nil, err
		}
		selection.Where = where
	}
	if of.prefix == "" {
		return selection, nil, nil, nil
	}
	if len(c.descriptor.Key) == 0 || c.descriptor.Key[0].Type != pb.KeyType_KEY_TYPE_STRING {
		return nil, nil, nil, fmt.Errorf("the first column of the key of %s is no text: it has no prefix", c.state.State)
	}
	part := &pb.KeyPart{Value: &pb.KeyPart_String_{String_: of.prefix}}
	start := appendPart(nil, pb.KeyType_KEY_TYPE_STRING, part)
	// Without what ends a text.
	start = start[:len(start)-2]
	return selection, start, behind(start), nil
}

// behind is the first of all bytes that don't begin so, in order; nil: there is none.
func behind(prefix []byte) []byte {
	end := append([]byte{}, prefix...)
	for at := len(end) - 1; at >= 0; at-- {
		if end[at] < 0xFF {
			end[at]++
			return end[:at+1]
		}
	}
	return nil
}

var operators = []struct {
	text string
	of   pb.ComparisonOperator
}{
	{">=", pb.ComparisonOperator_COMPARISON_OPERATOR_AT_LEAST},
	{"<=", pb.ComparisonOperator_COMPARISON_OPERATOR_AT_MOST},
	{">", pb.ComparisonOperator_COMPARISON_OPERATOR_GREATER},
	{"<", pb.ComparisonOperator_COMPARISON_OPERATOR_LESS},
	{"=", pb.ComparisonOperator_COMPARISON_OPERATOR_EQUAL},
}

// comparison reads max>30: a field of the value, and a number or, of a text field, a text.
func (c *client) comparison(text string) (*pb.Predicate, error) {
	for _, operator := range operators {
		name, given, there := strings.Cut(text, operator.text)
		if !there {
			continue
		}
		for _, field := range c.descriptor.Value.Fields {
			if field.Name != name {
				continue
			}
			value := &pb.PredicateValue{Value: &pb.PredicateValue_String_{String_: given}}
			if field.Type != "string" {
				number, err := strconv.ParseFloat(given, 64)
				if err != nil {
					return nil, fmt.Errorf("field %s is of type %s: compare it with a number", name, field.Type)
				}
				value = &pb.PredicateValue{Value: &pb.PredicateValue_Floating{Floating: number}}
			}
			path := &pb.FieldPath{Names: []string{name}, Place: pb.FieldPlace_FIELD_PLACE_VALUE}
			comparison := &pb.Comparison{Field: path, Operator: operator.of, Value: value}
			return &pb.Predicate{Kind: &pb.Predicate_Comparison{Comparison: comparison}}, nil
		}
		return nil, fmt.Errorf("the values of %s have no field %q", c.state.State, name)
	}
	return nil, fmt.Errorf("write a comparison as max>30, with one of >= <= > < =")
}
