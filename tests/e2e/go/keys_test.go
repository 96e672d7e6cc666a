package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "keyhole.dev/e2e/keyholev1"
)

type vector struct {
	Types      []string          `json:"types"`
	Key        []any             `json:"key"`
	Hash       int32             `json:"hash"`
	KeyGroups  map[string]uint16 `json:"key_groups"`
	EncodedKey string            `json:"encoded_key"`
}

// Every key that Spark hashed, in vectors/, has the hash, the key groups and the bytes that are written there.
func TestKeysAreHashedAndEncodedAsTheGoldenVectorsSay(t *testing.T) {
	file, err := os.ReadFile("../../../vectors/spark_murmur3.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct{ Vectors []vector }
	decoder := json.NewDecoder(strings.NewReader(string(file)))
	decoder.UseNumber()
	if err := decoder.Decode(&golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Vectors) < 50 {
		t.Fatalf("only %d vectors", len(golden.Vectors))
	}
	for index, one := range golden.Vectors {
		var columns []*pb.KeyColumn
		var parts []*pb.KeyPart
		hash := uint32(seed)
		for at, name := range one.Types {
			kind := pb.KeyType(pb.KeyType_value["KEY_TYPE_"+strings.ToUpper(name)])
			columns = append(columns, &pb.KeyColumn{Name: name, Type: kind})
			parts = append(parts, goldenPart(t, kind, one.Key[at]))
			hash = hashPart(kind, parts[at], hash)
		}
		if int32(hash) != one.Hash {
			t.Errorf("vector %d (%v): hash %d, not %d", index, one.Types, int32(hash), one.Hash)
		}
		for groups, group := range one.KeyGroups {
			var count uint32
			if err := json.Unmarshal([]byte(groups), &count); err != nil {
				t.Fatal(err)
			}
			key := storageKey(&pb.StateDescriptor{Key: columns, KeyGroups: count}, parts)
			if got := uint16(key[0])<<8 | uint16(key[1]); got != group {
				t.Errorf("vector %d (%v): key group %d of %s, not %d", index, one.Types, got, groups, group)
			}
			if hex.EncodeToString(key[2:]) != one.EncodedKey {
				t.Errorf("vector %d (%v): encoded as %x, not %s", index, one.Types, key[2:], one.EncodedKey)
			}
			decoded, _, err := decodeKey(&pb.StateDescriptor{Key: columns}, key[2:])
			if err != nil {
				t.Fatalf("vector %d (%v): %v", index, one.Types, err)
			}
			for at, column := range columns {
				again, err := part(column, fmt.Sprint(decoded[at]))
				if err != nil || !proto.Equal(again, parts[at]) {
					t.Errorf("vector %d (%v): decoded to %v", index, one.Types, decoded)
				}
			}
		}
	}
}

func goldenPart(t *testing.T, kind pb.KeyType, value any) *pb.KeyPart {
	number := func() int64 {
		whole, err := value.(json.Number).Int64()
		if err != nil {
			t.Fatal(err)
		}
		return whole
	}
	switch kind {
	case pb.KeyType_KEY_TYPE_STRING:
		return &pb.KeyPart{Value: &pb.KeyPart_String_{String_: value.(string)}}
	case pb.KeyType_KEY_TYPE_BINARY:
		data, err := hex.DecodeString(value.(string))
		if err != nil {
			t.Fatal(err)
		}
		return &pb.KeyPart{Value: &pb.KeyPart_Binary{Binary: data}}
	case pb.KeyType_KEY_TYPE_BOOLEAN:
		return &pb.KeyPart{Value: &pb.KeyPart_Boolean{Boolean: value.(bool)}}
	case pb.KeyType_KEY_TYPE_DATE:
		return &pb.KeyPart{Value: &pb.KeyPart_DateDays{DateDays: int32(number())}}
	case pb.KeyType_KEY_TYPE_TIMESTAMP:
		return &pb.KeyPart{Value: &pb.KeyPart_TimestampMicros{TimestampMicros: number()}}
	}
	return &pb.KeyPart{Value: &pb.KeyPart_Integer{Integer: number()}}
}

func TestTextThatIsNotOfTheColumnsTypeIsRefused(t *testing.T) {
	for kind, text := range map[pb.KeyType]string{
		pb.KeyType_KEY_TYPE_SMALLINT:  "32768",
		pb.KeyType_KEY_TYPE_INT:       "many",
		pb.KeyType_KEY_TYPE_DATE:      "tomorrow",
		pb.KeyType_KEY_TYPE_TIMESTAMP: "2026-11-21",
		pb.KeyType_KEY_TYPE_BINARY:    "xyz",
	} {
		if _, err := part(&pb.KeyColumn{Name: "k", Type: kind}, text); err == nil {
			t.Errorf("%s took %q", kind, text)
		}
	}
}
