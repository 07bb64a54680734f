package config

// What one instance may need of memory besides its messages and ids, in bytes.
const (
	// BytesPerID is what the dedup state takes for an id at the most.
	BytesPerID = 60

	// OtherMemory is what does not grow with the load: the binary, connections and
	// goroutines of its lanes, buffers, and room for what the collector has not
	// collected yet.
	OtherMemory = 192 << 20
)

// MemoryNeed is what one instance may need, in bytes: an upper bound of its
// resident memory. A batch that is decompressed comes on top of memory.max_bytes,
// and is there twice while it grows.
func (c *Config) MemoryNeed() int64 {
	return c.Dedup.MaxIDs*BytesPerID + c.Memory.MaxBytes + 2*int64(c.Kafka.MaxBatchBytes) + OtherMemory
}
