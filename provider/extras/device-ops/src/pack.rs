//! Packing, and unpacking.

use std::ops::Range;

use hmem::cuda::Stream;

use crate::error::{Error, driver};
use crate::kernels::Kernel;
use crate::layout::{Form, Layout};
use crate::memory::Memory;
use crate::ptx::{Direction, LEVELS, PackKernel};

/// Elements of a datatype in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Element<'a> {
    /// The datatype.
    pub layout: &'a Layout,
    /// How many.
    pub count: u64,
    /// Bytes from one to the next: MPI_Type_get_extent.
    pub extent: i64,
}

/// Queues the packing of the bytes `range` of all packed bytes of a buffer into `packed`, from its first
/// byte on.
pub fn pack(
    stream: Stream,
    elements: Element<'_>,
    typed: Memory,
    range: Range<u64>,
    packed: Memory,
) -> Result<(), Error> {
    start(stream, Direction::Pack, elements, typed, range, packed)
}

/// Queues the unpacking of the bytes `range` of all packed bytes of a buffer out of `packed`, from its first
/// byte on. Bytes of the buffer that belong to no element are not written.
pub fn unpack(
    stream: Stream,
    elements: Element<'_>,
    typed: Memory,
    range: Range<u64>,
    packed: Memory,
) -> Result<(), Error> {
    start(stream, Direction::Unpack, elements, typed, range, packed)
}

fn start(
    stream: Stream,
    direction: Direction,
    elements: Element<'_>,
    typed: Memory,
    range: Range<u64>,
    packed: Memory,
) -> Result<(), Error> {
    let form = elements.layout.repeated(elements.count, elements.extent);
    let whole = form.size().zip(form.bounds());
    let Some((size, (lower, upper))) = whole else {
        let why = format!("{} elements of a datatype have more than 2^63 bytes", elements.count);
        return Err(Error::Argument(why));
    };
    if range.start > range.end || range.end > size {
        let why = format!("the packed bytes {range:?} are asked for, and there are {size}");
        return Err(Error::Argument(why));
    }
    let len = range.end - range.start;
    if len == 0 {
        return Ok(());
    }
    typed.check("buffer", lower, upper)?;
    packed.check("packed buffer", 0, len as i64)?;
    if let ([piece], []) = (form.pieces.as_slice(), form.levels.as_slice()) {
        let at = typed.origin().wrapping_add_signed(piece.offset).wrapping_add(range.start);
        let (to, from) = match direction {
            Direction::Pack => (packed.origin(), at),
            Direction::Unpack => (at, packed.origin()),
        };
        // SAFETY: `Memory`'s promise, for bytes that are inside.
        let copied = unsafe { stream.copy(to as usize, from as usize, len as usize) };
        return copied.map_err(driver("copying elements"));
    }
    launch(stream, direction, elements.layout, &form, [typed, packed], range)
}

fn launch(
    stream: Stream,
    direction: Direction,
    layout: &Layout,
    form: &Form,
    [typed, packed]: [Memory; 2],
    range: Range<u64>,
) -> Result<(), Error> {
    let len = range.end - range.start;
    let listed = form.pieces.len() > 1;
    let bits = form.bits() | typed.origin() | packed.origin() | range.start | len;
    let unit = bits.trailing_zeros().min(4);
    let (first, units) = (range.start >> unit, len >> unit);
    // The list's offsets are in its table; that of one piece is not.
    let offset = if listed { 0 } else { form.pieces[0].offset };
    let table = if listed { layout.table(stream)? } else { 0 };
    let short = first + units < u64::from(u32::MAX);
    // No quotient by a larger number is more than 0 then.
    let number = |n: u64| if short { n.min(u64::from(u32::MAX)) } else { n };
    let block = number(form.block().unwrap_or(0) >> unit);
    let (typed, pieces) = (typed.origin().wrapping_add_signed(offset), form.pieces.len() as u64);
    let mut arguments = vec![typed, packed.origin(), first, units, block, table, pieces];
    arguments.extend(form.levels.iter().flat_map(|l| [number(l.count), l.stride as u64]));
    arguments.resize(7 + 2 * LEVELS, 0);
    let kernel = PackKernel { direction, levels: form.levels.len() as u32, listed, unit, short };
    // SAFETY: `Memory`'s promise, for bytes that are inside: the bounds were checked; the arguments are as
    // the kernel's text has them.
    unsafe { Kernel::Pack(kernel).launch(stream, units, &arguments) }
}
