package main

import (
	"encoding/json"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	pb "keyhole.dev/e2e/keyholev1"
)

// row reads a value as docs/values.md tells it: an array of the schema version, then the fields in their order. A row of
// an earlier schema is brought to the newest one step by step.
func row(state *pb.StateDescriptor, value []byte) (map[string]any, error) {
	var items []any
	if err := msgpack.Unmarshal(value, &items); err != nil {
		return nil, fmt.Errorf("a value is no MessagePack array: %w", err)
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("a row has no schema version")
	}
	version, err := whole(items[0])
	if err != nil {
		return nil, err
	}
	schemas := append(append([]*pb.ValueSchema{}, state.Earlier...), state.Value)
	for index, schema := range schemas {
		if int64(schema.Version) != version {
			continue
		}
		if len(items)-1 != len(schema.Fields) {
			return nil, fmt.Errorf("a row of version %d has %d fields, not %d", version, len(items)-1, len(schema.Fields))
		}
		fields := map[string]any{}
		for at, field := range schema.Fields {
			fields[field.Name] = plain(items[at+1])
		}
		return evolved(fields, schemas[index+1:])
	}
	return nil, fmt.Errorf("a row is of version %d, which the descriptor does not know: describe the state again", version)
}

func evolved(fields map[string]any, later []*pb.ValueSchema) (map[string]any, error) {
	for _, schema := range later {
		next := map[string]any{}
		for _, field := range schema.Fields {
			held, there := fields[field.Name]
			if !there && len(field.Default) > 0 {
				if err := msgpack.Unmarshal(field.Default, &held); err != nil {
					return nil, fmt.Errorf("the default of field %s: %w", field.Name, err)
				}
				held = plain(held)
			}
			next[field.Name] = held
		}
		fields = next
	}
	return fields, nil
}

func whole(value any) (int64, error) {
	switch number := value.(type) {
	case int8:
		return int64(number), nil
	case uint8:
		return int64(number), nil
	case int16:
		return int64(number), nil
	case uint16:
		return int64(number), nil
	case int32:
		return int64(number), nil
	case uint32:
		return int64(number), nil
	case int64:
		return number, nil
	case uint64:
		return int64(number), nil
	}
	return 0, fmt.Errorf("a row does not begin with its schema version")
}

// plain is what JSON can say: NaN and infinities as strings, as Keyhole's own JSON has them.
func plain(value any) any {
	switch held := value.(type) {
	case float64:
		if _, err := json.Marshal(held); err != nil {
			return map[string]string{"NaN": "NaN", "+Inf": "Infinity", "-Inf": "-Infinity"}[fmt.Sprint(held)]
		}
	case []any:
		items := make([]any, len(held))
		for index, item := range held {
			items[index] = plain(item)
		}
		return items
	}
	return value
}
