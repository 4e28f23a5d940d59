//! Numbers, texts and names as bytes, and back.

/// Longest name of a device, a publisher, or a job.
pub const MOST_NAME: usize = 64;
/// Most clients of a request.
pub const MOST_CLIENTS: usize = 32;

/// A message that is written.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn text(&mut self, text: &str, most: usize) {
        let mut end = text.len().min(most);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.0.extend((end as u16).to_le_bytes());
        self.0.extend(&text.as_bytes()[..end]);
    }

    pub(super) fn long(&mut self, n: u64) {
        self.0.extend(n.to_le_bytes());
    }

    pub(super) fn names(&mut self, names: &[String]) {
        self.0.push(names.len().min(MOST_CLIENTS) as u8);
        names.iter().take(MOST_CLIENTS).for_each(|name| self.text(name, MOST_NAME));
    }
}

/// A message that is read.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.bytes().map(|[b]| b)
    }

    pub(super) fn flag(&mut self) -> Option<bool> {
        self.byte().filter(|b| *b < 2).map(|b| b == 1)
    }

    pub(super) fn short(&mut self) -> Option<u16> {
        self.bytes().map(u16::from_le_bytes)
    }

    pub(super) fn word(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self, most: usize) -> Option<String> {
        let len = usize::from(self.short()?);
        let (text, rest) = self.0.split_at_checked(len).filter(|_| len <= most)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    pub(super) fn names(&mut self) -> Option<Vec<String>> {
        let count = usize::from(self.byte()?);
        (0..count).map(|_| self.text(MOST_NAME)).collect::<Option<Vec<_>>>().filter(|_| count <= MOST_CLIENTS)
    }

    /// Nothing may be left.
    pub(super) fn end<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}
