package dedup

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"slices"
	"testing"
)

// sound is a chunk of three entries.
func sound() []byte {
	s := New()
	for i := range uint64(3) {
		k := key(i + 1)
		s.Add(&k, [8]byte{1, 2, 3, byte(i)}, int64(100+i), 7*hour+int64(i))
	}
	return s.Freeze(0).Chunks(1 << 10)[0].Data
}

// The stored form and the checksum never change: running lanes depend on them.
func TestStoredFormIsPinned(t *testing.T) {
	s := New()
	k := [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	s.Add(&k, [8]byte{0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7}, 0x0102030405060708, 1_795_951_800_123_456)
	f := s.Freeze(0)
	chunks := f.Chunks(512 << 10)
	const want = "62647570" + "0100" + "2000" + "00705c0869610600" + "01000000" + "dffe1ab1" +
		"000102030405060708090a0b0c0d0e0f" + "0807060504030201" + "a0a1a2a3a4a5a6a7"
	if len(chunks) != 1 || hex.EncodeToString(chunks[0].Data) != want {
		t.Errorf("chunks are\n%x, want\n%s", chunks[0].Data, want)
	}
	if f.Count != 1 || f.Checksum != 0x6f94a45923180331 {
		t.Errorf("count %d, checksum %#x", f.Count, f.Checksum)
	}
}

// One chunk per bucket and bound, buckets in order, entries in order.
func TestChunksSplitByBucketAndBound(t *testing.T) {
	s := New()
	for i := range 10 {
		k := key(uint64(i))
		s.Add(&k, [8]byte{}, int64(i), int64(3-i%2)*hour) // buckets that end at 4 h and 3 h
	}
	dead := key(77)
	s.Add(&dead, [8]byte{}, 10, hour/2)
	f := s.Freeze(hour)
	var got []int64
	for _, c := range f.Chunks(chunkHeader + 2*chunkEntry + 31) {
		for b := c.Data[chunkHeader:]; len(b) > 0; b = b[chunkEntry:] {
			got = append(got, c.BucketEnd/hour*1000+int64(binary.LittleEndian.Uint64(b[16:])))
		}
		got = append(got, -1)
	}
	want := []int64{3001, 3003, -1, 3005, 3007, -1, 3009, -1, 4000, 4002, -1, 4004, 4006, -1, 4008, -1}
	if !slices.Equal(got, want) {
		t.Errorf("bucket and offset of entries, -1 ends a chunk:\n%v, want\n%v", got, want)
	}
	if again := f.Chunks(chunkHeader + 2*chunkEntry); len(again) != 6 {
		t.Errorf("%d chunks the second time, want 6", len(again))
	}
	if more := s.Freeze(hour); len(more.Chunks(1<<10)) != 0 || more.Count != 10 {
		t.Errorf("an epoch without additions has chunks, or %d entries", more.Count)
	}
}

func TestLoadFindsEveryFlippedBit(t *testing.T) {
	data := sound()
	for bit := range len(data) * 8 {
		flipped := bytes.Clone(data)
		flipped[bit/8] ^= 1 << (bit % 8)
		if _, err := New().Load(flipped); !errors.Is(err, ErrDamaged) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
	}
	for n := range len(data) {
		if _, err := New().Load(data[:n]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("cut to %d bytes: %v", n, err)
		}
	}
	if _, err := New().Load(append(bytes.Clone(data), 0)); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a byte too many: %v", err)
	}
	if end, err := New().Load(data); err != nil || end != 8*hour {
		t.Fatalf("the sound chunk: %d, %v", end, err)
	}
}

// What has a right CRC and still is no chunk.
func TestLoadRefusesWhatNoBuildWrote(t *testing.T) {
	for name, c := range map[string]struct {
		change func([]byte)
		want   error
	}{
		"newer version":      {func(b []byte) { b[4] = 2 }, ErrVersion},
		"other entry size":   {func(b []byte) { b[6] = 40 }, ErrDamaged},
		"count of more":      {func(b []byte) { b[16]++ }, ErrDamaged},
		"count of none":      {func(b []byte) { b[16] = 0 }, ErrDamaged},
		"no bucket":          {func(b []byte) { clear(b[8:16]) }, ErrDamaged},
		"bucket of no hour":  {func(b []byte) { b[8]++ }, ErrDamaged},
		"bucket beyond all":  {func(b []byte) { binary.LittleEndian.PutUint64(b[8:], (maxBucket+1)*uint64(hour)) }, ErrDamaged},
		"one id twice in it": {func(b []byte) { copy(b[chunkHeader:], b[chunkHeader+chunkEntry:][:16]) }, ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			data := sound()
			c.change(data)
			seal(data)
			if _, err := New().Load(data); !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
		})
	}
	t.Run("one chunk twice", func(t *testing.T) {
		s := New()
		if _, err := s.Load(sound()); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(sound()); !errors.Is(err, ErrDamaged) {
			t.Fatalf("got %v", err)
		}
	})
}

func FuzzLoad(f *testing.F) {
	f.Add(sound(), uint16(0), byte(0), false)
	f.Add(sound(), uint16(17), byte(1), true)
	f.Add(sound(), uint16(9), byte(0x80), true)
	f.Add([]byte("bdup"), uint16(0), byte(1), true)
	f.Fuzz(func(t *testing.T, data []byte, at uint16, flip byte, reseal bool) {
		data = bytes.Clone(data)
		if len(data) > 0 {
			data[int(at)%len(data)] ^= flip
		}
		if reseal && len(data) >= chunkHeader {
			seal(data)
		}
		s := New()
		end, err := s.Load(data)
		if err != nil {
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
				t.Fatalf("an error that is neither damage nor version: %v", err)
			}
			return
		}
		// Whatever is taken is a chunk by the letter, and all of it is there.
		sum := crc32.Update(0, castagnoli, data[:crcAt])
		if crc32.Update(sum, castagnoli, data[crcAt+4:]) != binary.LittleEndian.Uint32(data[crcAt:]) {
			t.Fatal("taken with a wrong CRC")
		}
		n := binary.LittleEndian.Uint32(data[16:])
		if count, _ := s.Restored(0); count != uint64(n) || len(data) != chunkHeader+int(n)*chunkEntry {
			t.Fatalf("%d bytes for %d entries gave %d", len(data), n, count)
		}
		for b := data[chunkHeader:]; len(b) > 0; b = b[chunkEntry:] {
			e, ok := s.Lookup((*[16]byte)(b), end-1)
			if !ok || e.Offset != int64(binary.LittleEndian.Uint64(b[16:])) || e.Content != [8]byte(b[24:32]) {
				t.Fatalf("entry %x: got %v %v", b[:chunkEntry], e, ok)
			}
		}
		if _, ok := s.Lookup((*[16]byte)(data[chunkHeader:]), end); ok {
			t.Fatal("found at its bucket's end")
		}
	})
}
