//! Frames as bytes of a stream: a kind, zeros, a length, and as many bytes.

use std::collections::VecDeque;

/// Bytes before those of a frame.
pub(super) const HEADER: usize = 8;

const FRAME: u8 = 1;

/// What a stream begins with.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Less than a whole frame.
    Part,
    Frame(Vec<u8>),
    /// What no honest sender sends.
    Nonsense,
}

/// What comes before a frame of so many bytes.
pub(super) fn header(len: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    out[0] = FRAME;
    out[4..].copy_from_slice(&(len as u32).to_le_bytes());
    out
}

/// The length of the frame that a stream begins with, once its header is there; `Err`: nonsense.
fn length(stream: &VecDeque<u8>, most: usize) -> Result<Option<usize>, ()> {
    let mut header = [0; HEADER];
    if stream.len() < HEADER {
        return Ok(None);
    }
    header.iter_mut().zip(stream.iter()).for_each(|(to, from)| *to = *from);
    let [kind, a, b, c, len @ ..] = header;
    let len = u32::from_le_bytes(len) as usize;
    if kind != FRAME || [a, b, c] != [0; 3] || len > most { Err(()) } else { Ok(Some(len)) }
}

/// Whether a stream begins with a whole frame of at most `most` bytes.
pub(super) fn starts_whole(stream: &VecDeque<u8>, most: usize) -> bool {
    matches!(length(stream, most), Ok(Some(len)) if stream.len() - HEADER >= len)
}

/// Takes a frame of at most `most` bytes off the front of a stream.
pub(super) fn take(stream: &mut VecDeque<u8>, most: usize) -> Next {
    match length(stream, most) {
        Err(()) => Next::Nonsense,
        Ok(Some(len)) if stream.len() - HEADER >= len => {
            stream.drain(..HEADER);
            Next::Frame(stream.drain(..len).collect())
        }
        Ok(_) => Next::Part,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_once_all_of_it_is_there() {
        let mut stream = VecDeque::new();
        let bytes: Vec<u8> = header(3).into_iter().chain(*b"abc").chain(header(0)).collect();
        let mut taken = Vec::new();
        for byte in bytes {
            stream.push_back(byte);
            match take(&mut stream, 3) {
                Next::Part => {}
                other => taken.push(other),
            }
        }
        assert_eq!(taken, [Next::Frame(b"abc".to_vec()), Next::Frame(Vec::new())]);
    }

    #[test]
    fn nonsense_is_found_by_its_header() {
        for bytes in [[2, 0, 0, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 0, 0], [1, 0, 0, 0, 4, 0, 0, 0]] {
            assert_eq!(take(&mut bytes.into(), 3), Next::Nonsense);
        }
    }
}
