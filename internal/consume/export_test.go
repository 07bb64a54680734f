package consume

// Buffered is what the fetch client has read and not handed over, as the library
// counts it: keys, values and headers.
func (c *Client) Buffered() int64 { return c.fetch.cl.BufferedFetchBytes() }
