package main

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"time"

	pb "keyhole.dev/e2e/keyholev1"
)

// Keys as docs/keys.md and vectors/README.md tell them: typed, as bytes, and their key group.

// part makes a typed key part of a column's text: binary in hexadecimal digits, dates as 2026-11-21, timestamps as RFC 3339.
func part(column *pb.KeyColumn, text string) (*pb.KeyPart, error) {
	// Without the text: keys don't belong in messages.
	refused := fmt.Errorf("key column %s is of type %s, which the given text is not", column.Name, column.Type)
	switch column.Type {
	case pb.KeyType_KEY_TYPE_STRING:
		return &pb.KeyPart{Value: &pb.KeyPart_String_{String_: text}}, nil
	case pb.KeyType_KEY_TYPE_BINARY:
		data, err := hex.DecodeString(text)
		if err != nil {
			return nil, refused
		}
		return &pb.KeyPart{Value: &pb.KeyPart_Binary{Binary: data}}, nil
	case pb.KeyType_KEY_TYPE_BOOLEAN:
		value, err := strconv.ParseBool(text)
		if err != nil {
			return nil, refused
		}
		return &pb.KeyPart{Value: &pb.KeyPart_Boolean{Boolean: value}}, nil
	case pb.KeyType_KEY_TYPE_SMALLINT, pb.KeyType_KEY_TYPE_INT, pb.KeyType_KEY_TYPE_BIGINT:
		value, err := strconv.ParseInt(text, 10, width(column.Type)*8)
		if err != nil {
			return nil, refused
		}
		return &pb.KeyPart{Value: &pb.KeyPart_Integer{Integer: value}}, nil
	case pb.KeyType_KEY_TYPE_DATE:
		day, err := time.Parse(time.DateOnly, text)
		if err != nil {
			return nil, refused
		}
		return &pb.KeyPart{Value: &pb.KeyPart_DateDays{DateDays: int32(day.Unix() / 86_400)}}, nil
	case pb.KeyType_KEY_TYPE_TIMESTAMP:
		moment, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, refused
		}
		return &pb.KeyPart{Value: &pb.KeyPart_TimestampMicros{TimestampMicros: moment.UnixMicro()}}, nil
	}
	return nil, fmt.Errorf("key column %s is of type %s, which this client doesn't know", column.Name, column.Type)
}

// storageKey is the key group (2 bytes) and the encoded key, then the encoded map key.
func storageKey(state *pb.StateDescriptor, parts []*pb.KeyPart) []byte {
	columns := append(append([]*pb.KeyColumn{}, state.Key...), state.MapKey...)
	hash := uint32(seed)
	var encoded []byte
	for index, column := range columns {
		if index < len(state.Key) {
			hash = hashPart(column.Type, parts[index], hash)
		}
		encoded = appendPart(encoded, column.Type, parts[index])
	}
	return append(binary.BigEndian.AppendUint16(nil, keyGroup(hash, state.KeyGroups)), encoded...)
}

func keyGroup(hash uint32, groups uint32) uint16 {
	group := int64(int32(hash)) % int64(groups)
	if group < 0 {
		group += int64(groups)
	}
	return uint16(group)
}

// appendPart keeps the order: encoded keys sort as the keys do.
func appendPart(to []byte, kind pb.KeyType, part *pb.KeyPart) []byte {
	switch kind {
	case pb.KeyType_KEY_TYPE_STRING, pb.KeyType_KEY_TYPE_BINARY:
		for _, one := range data(kind, part) {
			if to = append(to, one); one == 0 {
				to = append(to, 0xFF)
			}
		}
		return append(to, 0, 0)
	case pb.KeyType_KEY_TYPE_BOOLEAN:
		return append(to, byte(number(kind, part)))
	}
	bytes := width(kind)
	value := uint64(number(kind, part)) ^ 1<<(8*bytes-1)
	for shift := 8 * (bytes - 1); shift >= 0; shift -= 8 {
		to = append(to, byte(value>>shift))
	}
	return to
}

// decodeKey is the key and the map key of a storage key without its key group, as JSON can say them.
func decodeKey(state *pb.StateDescriptor, encoded []byte) (key []any, mapKey []any, err error) {
	second := state.MapKey
	if state.Kind == pb.StateKind_STATE_KIND_LIST {
		second = []*pb.KeyColumn{{Name: "position", Type: pb.KeyType_KEY_TYPE_BIGINT}}
	}
	for index, column := range append(append([]*pb.KeyColumn{}, state.Key...), second...) {
		var value any
		if value, encoded, err = decodePart(column.Type, encoded); err != nil {
			return nil, nil, err
		}
		if index < len(state.Key) {
			key = append(key, value)
		} else {
			mapKey = append(mapKey, value)
		}
	}
	if len(encoded) > 0 {
		return nil, nil, errors.New("an encoded key has more columns than the descriptor")
	}
	return key, mapKey, nil
}

// decodePart is a column's value, spelled as `part` reads it, and the bytes behind it.
func decodePart(kind pb.KeyType, encoded []byte) (any, []byte, error) {
	short := errors.New("an encoded key ends too soon")
	switch kind {
	case pb.KeyType_KEY_TYPE_STRING, pb.KeyType_KEY_TYPE_BINARY:
		var data []byte
		for at := 0; at+1 < len(encoded); at++ {
			if encoded[at] != 0 {
				data = append(data, encoded[at])
				continue
			}
			if at++; encoded[at] == 0 {
				if kind == pb.KeyType_KEY_TYPE_STRING {
					return string(data), encoded[at+1:], nil
				}
				return hex.EncodeToString(data), encoded[at+1:], nil
			}
			data = append(data, 0)
		}
		return nil, nil, short
	case pb.KeyType_KEY_TYPE_BOOLEAN:
		if len(encoded) == 0 {
			return nil, nil, short
		}
		return encoded[0] == 1, encoded[1:], nil
	}
	bytes := width(kind)
	if len(encoded) < bytes {
		return nil, nil, short
	}
	var bits uint64
	for _, one := range encoded[:bytes] {
		bits = bits<<8 | uint64(one)
	}
	// The sign bit is flipped, and stands for all above it.
	shift := 64 - 8*bytes
	value := int64((bits^1<<(8*bytes-1))<<shift) >> shift
	switch kind {
	case pb.KeyType_KEY_TYPE_DATE:
		return time.Unix(value*86_400, 0).UTC().Format(time.DateOnly), encoded[bytes:], nil
	case pb.KeyType_KEY_TYPE_TIMESTAMP:
		return time.UnixMicro(value).UTC().Format(time.RFC3339Nano), encoded[bytes:], nil
	}
	return value, encoded[bytes:], nil
}

const seed = 42

// hashPart is Spark's murmur3 of one column; the hash of one column is the seed of the next.
func hashPart(kind pb.KeyType, part *pb.KeyPart, h uint32) uint32 {
	switch kind {
	case pb.KeyType_KEY_TYPE_STRING, pb.KeyType_KEY_TYPE_BINARY:
		bytes := data(kind, part)
		whole := len(bytes) &^ 3
		for at := 0; at < whole; at += 4 {
			h = mixed(h, binary.LittleEndian.Uint32(bytes[at:]))
		}
		for _, one := range bytes[whole:] {
			h = mixed(h, uint32(int32(int8(one))))
		}
		return finished(h, uint32(len(bytes)))
	case pb.KeyType_KEY_TYPE_BIGINT, pb.KeyType_KEY_TYPE_TIMESTAMP:
		value := uint64(number(kind, part))
		return finished(mixed(mixed(h, uint32(value)), uint32(value>>32)), 8)
	}
	return finished(mixed(h, uint32(number(kind, part))), 4)
}

func mixed(h, word uint32) uint32 {
	word = bits.RotateLeft32(word*0xCC9E2D51, 15) * 0x1B873593
	return bits.RotateLeft32(h^word, 13)*5 + 0xE6546B64
}

func finished(h, length uint32) uint32 {
	h ^= length
	h = (h ^ h>>16) * 0x85EBCA6B
	h = (h ^ h>>13) * 0xC2B2AE35
	return h ^ h>>16
}

// width is how many bytes a number of the type takes.
func width(kind pb.KeyType) int {
	switch kind {
	case pb.KeyType_KEY_TYPE_SMALLINT:
		return 2
	case pb.KeyType_KEY_TYPE_INT, pb.KeyType_KEY_TYPE_DATE:
		return 4
	}
	return 8
}

func data(kind pb.KeyType, part *pb.KeyPart) []byte {
	if kind == pb.KeyType_KEY_TYPE_STRING {
		return []byte(part.GetString_())
	}
	return part.GetBinary()
}

func number(kind pb.KeyType, part *pb.KeyPart) int64 {
	switch kind {
	case pb.KeyType_KEY_TYPE_BOOLEAN:
		if part.GetBoolean() {
			return 1
		}
		return 0
	case pb.KeyType_KEY_TYPE_DATE:
		return int64(part.GetDateDays())
	case pb.KeyType_KEY_TYPE_TIMESTAMP:
		return part.GetTimestampMicros()
	}
	return part.GetInteger()
}
