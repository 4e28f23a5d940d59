//! The bytes between a process and its exchange. Numbers are little-endian.
//!
//! A process opens with [`Hello`]. Then both sides send frames: a length, a kind, and so many bytes.

use std::io::{self, Read, Write};

use crate::LONGEST;

const MAGIC: u64 = u64::from_le_bytes(*b"strtbts1");

/// Longest token, in bytes.
const TOKEN: usize = 256;

/// Bytes of an introduction before its token.
const HEAD: usize = 20;

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// How a process introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) token: Vec<u8>,
}

impl Hello {
    pub(crate) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.size.to_le_bytes());
        let len = u32::try_from(self.token.len()).ok().filter(|len| *len as usize <= TOKEN);
        bytes.extend(len.ok_or(io::ErrorKind::InvalidInput)?.to_le_bytes());
        bytes.extend(&self.token);
        to.write_all(&bytes)
    }

    /// Length in bytes of the frame that begins with `bytes`, as far as they have it. An invalid head is an
    /// error.
    pub(crate) fn wants(bytes: &[u8]) -> io::Result<usize> {
        let begun = bytes.len().min(8);
        if bytes[..begun] != MAGIC.to_le_bytes()[..begun] {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(head) = bytes.get(..HEAD) else { return Ok(HEAD) };
        let token = number(head, 16) as usize;
        if token > TOKEN { Err(io::ErrorKind::InvalidData.into()) } else { Ok(HEAD + token) }
    }

    /// Of as many bytes as it wants.
    pub(crate) fn parse(bytes: &[u8]) -> io::Result<Hello> {
        if Hello::wants(bytes)? != bytes.len() || bytes.len() < HEAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Hello { rank: number(bytes, 8), size: number(bytes, 12), token: bytes[HEAD..].to_vec() })
    }
}

/// What travels after the introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// To the exchange: a process's bytes for the next allgather.
    Give(Vec<u8>),
    /// To the exchange: this process takes part no more.
    Leave,
    /// To a process: its introduction was accepted.
    Welcome,
    /// To a process: what all gave.
    All(Vec<Vec<u8>>),
    /// To a process: there will be no answer, and why.
    Failed(String),
}

impl Frame {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Frame::Give(bytes) => (1, bytes.clone()),
            Frame::Leave => (2, Vec::new()),
            Frame::Welcome => (3, Vec::new()),
            Frame::All(all) => {
                let mut body = Vec::new();
                for one in all {
                    body.extend((one.len() as u32).to_le_bytes());
                    body.extend(one);
                }
                (4, body)
            }
            Frame::Failed(text) => (5, text.clone().into_bytes()),
        };
        let mut bytes = (body.len() as u64).to_le_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(body);
        bytes
    }

    /// Reads a frame in a job of so many processes. A longer one than that can have is an error before it is
    /// read.
    pub(crate) fn read(from: &mut impl Read, size: usize) -> io::Result<Frame> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let (len, kind) = head.split_at(8);
        let len = u64::from_le_bytes(len.try_into().unwrap_or([0xff; 8]));
        let most = match kind[0] {
            1 => LONGEST,
            4 => size.saturating_mul(LONGEST + 4),
            5 => 4096,
            _ => 0,
        };
        let len = usize::try_from(len).ok().filter(|len| *len <= most).ok_or(io::ErrorKind::InvalidData)?;
        let mut body = Vec::new();
        // Memory is taken as bytes come, not as a length says.
        if from.take(len as u64).read_to_end(&mut body)? != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match kind[0] {
            1 => Ok(Frame::Give(body)),
            2 => Ok(Frame::Leave),
            3 => Ok(Frame::Welcome),
            4 => parts(&body, size).map(Frame::All).ok_or_else(|| io::ErrorKind::InvalidData.into()),
            5 => Ok(Frame::Failed(String::from_utf8_lossy(&body).into_owned())),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// So many parts, each behind its length, and nothing else.
fn parts(mut body: &[u8], count: usize) -> Option<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for _ in 0..count {
        let (len, rest) = body.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
        if len > rest.len() {
            return None;
        }
        let (one, rest) = rest.split_at(len);
        all.push(one.to_vec());
        body = rest;
    }
    body.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_introductions_are_read_as_they_are_written() {
        let hello = Hello { rank: 2, size: 9, token: b"word".to_vec() };
        let mut bytes = Vec::new();
        hello.write(&mut bytes).unwrap();
        assert_eq!(Hello::parse(&bytes).unwrap(), hello);
        for n in 0..bytes.len() {
            assert_eq!(Hello::wants(&bytes[..n]).unwrap(), if n < HEAD { HEAD } else { bytes.len() });
            assert!(Hello::parse(&bytes[..n]).is_err(), "{n} bytes");
        }
        bytes[19] = 1;
        assert!(Hello::wants(&bytes).is_err(), "a token of 16 MiB");
        bytes[0] ^= 1;
        assert!(Hello::parse(&bytes).is_err() && Hello::wants(&bytes[..1]).is_err());
        let long = Hello { token: vec![0; TOKEN + 1], ..hello };
        assert!(long.write(&mut Vec::new()).is_err());
        let all = Frame::All(vec![b"a".to_vec(), Vec::new(), b"cc".to_vec()]);
        for frame in
            [Frame::Give(b"x".to_vec()), Frame::Leave, Frame::Welcome, all, Frame::Failed("no".into())]
        {
            assert_eq!(Frame::read(&mut &frame.bytes()[..], 3).unwrap(), frame);
        }
    }

    #[test]
    fn a_frame_that_is_too_long_short_or_unknown_is_an_error() {
        let frame = |len: u64, kind: u8, body: &[u8]| [&len.to_le_bytes()[..], &[kind], body].concat();
        let read = |bytes: Vec<u8>| Frame::read(&mut &bytes[..], 2);
        for bytes in [
            frame(u64::MAX, 1, b""),
            frame(LONGEST as u64 + 1, 1, b""),
            frame(5, 1, b"four"),
            frame(1, 2, b"x"),
            frame(0, 9, b""),
            // One part of two; two of which one is cut off; three.
            frame(4, 4, &[0; 4]),
            frame(8, 4, &[0, 0, 0, 0, 1, 0, 0, 0]),
            frame(12, 4, &[0; 12]),
        ] {
            assert!(read(bytes.clone()).is_err(), "{bytes:?}");
        }
        assert!(read(frame(8, 4, &[0; 8])).is_ok());
    }
}
