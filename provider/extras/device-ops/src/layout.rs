//! Datatypes, flattened: pieces, and the levels at which they are repeated.

use std::sync::{Mutex, PoisonError};

use hmem::Kind;
use hmem::cuda::Stream;
use hmem::registry::{self, Exportable};

use crate::error::{Error, driver};

/// Bytes that are next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Where they begin, from the buffer's address on.
    pub offset: i64,
    /// How many they are.
    pub length: u64,
}

/// Repetition of what is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level {
    /// How often.
    pub count: u64,
    /// Bytes from one to the next.
    pub stride: i64,
}

/// Most levels of a layout.
pub const LEVELS: usize = 3;
/// Most pieces of a layout.
pub const PIECES: usize = 1 << 26;

/// A datatype in its canonical form: layouts of the same bytes in the same order are equal in most cases, and
/// cost the same. Its order is that of MPI's type map.
#[derive(Debug)]
pub struct Layout {
    form: Form,
    size: u64,
    bounds: (i64, i64),
    tables: Mutex<Vec<Table>>,
}

/// Pieces, and the levels around them from the innermost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) levels: Vec<Level>,
}

/// The pieces in the memory of a device: for each the number of bytes before it, and its offset.
#[derive(Debug)]
struct Table {
    /// The context's handle and number.
    ctx: (usize, u64),
    memory: Exportable,
}

impl PartialEq for Layout {
    fn eq(&self, other: &Layout) -> bool {
        self.form == other.form
    }
}

impl Eq for Layout {}

fn refused(why: &str) -> Error {
    Error::Argument(format!("a datatype {why}"))
}

impl Layout {
    /// Of these pieces, in this order, and of the levels at which all of them are repeated, from the
    /// innermost. Levels above [`LEVELS`] become pieces.
    pub fn new(pieces: &[Piece], levels: &[Level]) -> Result<Layout, Error> {
        let ends = |p: &Piece| p.offset.checked_add_unsigned(p.length).is_some();
        if !pieces.iter().all(ends) {
            return Err(refused("with offsets of more than 63 bits"));
        }
        let mut form = Form { pieces: joined(pieces.iter().copied()), levels: levels.to_vec() };
        if form.pieces.is_empty() || levels.iter().any(|l| l.count == 0) {
            form = Form { pieces: Vec::new(), levels: Vec::new() };
        }
        form.simplify();
        while form.levels.len() > LEVELS {
            form.unroll()?;
        }
        let bounds = form.bounds().ok_or_else(|| refused("with offsets of more than 63 bits"))?;
        let size = form.size().ok_or_else(|| refused("of more than 2^63 bytes"))?;
        Ok(Layout { form, size, bounds, tables: Mutex::default() })
    }

    /// Bytes of an element, packed: MPI_Type_size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The lowest byte, and the one behind the highest: MPI_Type_get_true_extent.
    pub fn bounds(&self) -> (i64, i64) {
        self.bounds
    }

    /// Whether an element is one piece.
    pub fn is_contiguous(&self) -> bool {
        self.form.pieces.len() <= 1 && self.form.levels.is_empty()
    }

    /// The pieces of a block, and the levels around it from the innermost.
    pub fn form(&self) -> (&[Piece], &[Level]) {
        (&self.form.pieces, &self.form.levels)
    }

    /// With that many elements, each so many bytes behind the one before.
    pub(crate) fn repeated(&self, count: u64, extent: i64) -> Form {
        let mut form = self.form.clone();
        if count != 1 {
            form.levels.push(Level { count, stride: extent });
        }
        form.simplify();
        form
    }

    /// Where the table of the pieces is in the memory of the stream's device.
    pub(crate) fn table(&self, stream: Stream) -> Result<u64, Error> {
        let id = stream.context_id().map_err(driver("entering the stream's context"))?;
        let ctx = (stream.context(), id);
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(table) = tables.iter().find(|t| t.ctx == ctx) {
            return Ok(table.memory.addr as u64);
        }
        let mut before = 0;
        let entries = self.form.pieces.iter().flat_map(|piece| {
            let entry = [before, piece.offset as u64];
            before += piece.length;
            entry
        });
        let entries: Vec<u64> = entries.collect();
        let (cuda, len) = (registry::of(Kind::Cuda), 8 * entries.len());
        let memory = stream
            .within(|| cuda.make_for_kernels(None, len))
            .map_err(driver("entering the stream's context"))?
            .map_err(driver("allocating device memory for a datatype"))?;
        cuda.copy_now(memory.addr, entries.as_ptr().expose_provenance(), len)
            .map_err(driver("copying a datatype to the device"))?;
        let addr = memory.addr as u64;
        tables.push(Table { ctx, memory });
        Ok(addr)
    }
}

/// Without empty pieces, and each one with those that go on where it ends.
fn joined(pieces: impl Iterator<Item = Piece>) -> Vec<Piece> {
    let mut all: Vec<Piece> = Vec::new();
    for piece in pieces.filter(|p| p.length > 0) {
        match all.last_mut() {
            Some(last) if last.offset.checked_add_unsigned(last.length) == Some(piece.offset) => {
                last.length += piece.length;
            }
            _ => all.push(piece),
        }
    }
    all
}

impl Form {
    /// Brings it into the canonical form.
    fn simplify(&mut self) {
        self.levels.retain(|l| l.count != 1);
        if let Some(level) = self.regular() {
            self.pieces.truncate(1);
            self.levels.insert(0, level);
        }
        if let [piece] = self.pieces.as_mut_slice() {
            while let Some(inner) = self.levels.first() {
                let Some(whole) = piece.length.checked_mul(inner.count) else { break };
                if i64::try_from(piece.length) != Ok(inner.stride) {
                    break;
                }
                piece.length = whole;
                self.levels.remove(0);
            }
        }
        let mut at = 1;
        while at < self.levels.len() {
            let (inner, outer) = (self.levels[at - 1], self.levels[at]);
            let span = i64::try_from(inner.count).ok().and_then(|n| n.checked_mul(inner.stride));
            match inner.count.checked_mul(outer.count) {
                Some(count) if span == Some(outer.stride) => {
                    self.levels[at - 1].count = count;
                    self.levels.remove(at);
                }
                _ => at += 1,
            }
        }
    }

    /// The level that pieces of one length and distance are, where there is room for one more.
    fn regular(&self) -> Option<Level> {
        if self.levels.len() >= LEVELS {
            return None;
        }
        let [first, second, ..] = self.pieces.as_slice() else { return None };
        let stride = second.offset.checked_sub(first.offset)?;
        let mut pairs = self.pieces.windows(2);
        let same = pairs
            .all(|p| p[1].length == first.length && p[1].offset.checked_sub(p[0].offset) == Some(stride));
        same.then_some(Level { count: self.pieces.len() as u64, stride })
    }

    /// Makes pieces of the innermost level.
    fn unroll(&mut self) -> Result<(), Error> {
        let inner = self.levels.remove(0);
        let all = (self.pieces.len() as u64).checked_mul(inner.count).filter(|n| *n <= PIECES as u64);
        all.ok_or_else(|| refused("of more than 2^26 pieces"))?;
        let mut pieces = Vec::new();
        for i in 0..inner.count as i64 {
            for piece in &self.pieces {
                let offset = i.checked_mul(inner.stride).and_then(|o| o.checked_add(piece.offset));
                let offset = offset.ok_or_else(|| refused("with offsets of more than 63 bits"))?;
                pieces.push(Piece { offset, ..*piece });
            }
        }
        self.pieces = joined(pieces.into_iter());
        Ok(())
    }

    /// Bytes of a block.
    pub(crate) fn block(&self) -> Option<u64> {
        self.pieces.iter().try_fold(0u64, |sum, p| sum.checked_add(p.length))
    }

    /// Bytes in all.
    pub(crate) fn size(&self) -> Option<u64> {
        let size = self.levels.iter().try_fold(self.block()?, |size, l| size.checked_mul(l.count))?;
        i64::try_from(size).is_ok().then_some(size)
    }

    /// The lowest byte, and the one behind the highest.
    pub(crate) fn bounds(&self) -> Option<(i64, i64)> {
        let mut bounds = (i64::MAX, i64::MIN);
        for piece in &self.pieces {
            let end = piece.offset.checked_add_unsigned(piece.length)?;
            bounds = (bounds.0.min(piece.offset), bounds.1.max(end));
        }
        if self.pieces.is_empty() || self.levels.iter().any(|l| l.count == 0) {
            return Some((0, 0));
        }
        for level in &self.levels {
            let last = i64::try_from(level.count - 1).ok()?.checked_mul(level.stride)?;
            bounds = (bounds.0.checked_add(last.min(0))?, bounds.1.checked_add(last.max(0))?);
        }
        Some(bounds)
    }

    /// All numbers of which a unit's size has to be a divisor, with their bits put together.
    pub(crate) fn bits(&self) -> u64 {
        let pieces = self.pieces.iter().fold(0, |bits, p| bits | p.offset as u64 | p.length);
        self.levels.iter().fold(pieces, |bits, l| bits | l.stride as u64)
    }
}
