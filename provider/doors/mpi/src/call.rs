//! A call with a buffer in device memory.

use core::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;

use hmem::Kind;

use crate::abi::Family;
use crate::args::{Args, Style, bytes_of, knows_lengths};
use crate::buffer::{Failure, Mirror, Mirrors, NotDescribed, Resolver, kernels, sync};
use crate::counts::{Counts, Path};
use crate::host::{is_host, is_no_address};
use crate::library::{Library, Next, UNAVAILABLE, library, pmpi};
use crate::narrow;
use crate::refuse::{self, Target};
use crate::row::{Buf, Count, Dir, Ends, On, Row, Type};
use crate::shape::{Data, Tree};
use crate::words;
use crate::{collective, direct, fortran, requests, settings, splits, stderr, windows};

const NEGATIVE: &str = "a count is less than 0";

/// Runs the call: its buffers in device memory are replaced, and the MPI's own call does it.
///
/// # Safety
/// The arguments are those of the row's call, passed in that way.
pub(crate) unsafe fn run(row: &'static Row, style: Style, words: &mut [usize], next: &Next) -> c_int {
    let Some(library) = library() else {
        stderr::say(&format!("{}: no MPI library is loaded\n", row.name));
        return UNAVAILABLE;
    };
    // SAFETY: the caller's promise.
    c_abi::caught(|| unsafe { run_in(library, row, style, words, next) }).unwrap_or(library.abi.errors.other)
}

unsafe fn run_in(
    library: &'static Library,
    row: &'static Row,
    style: Style,
    words: &mut [usize],
    next: &Next,
) -> c_int {
    // SAFETY: the caller's promise; so below.
    unsafe {
        let is_c = style == Style::Fortran && library.abi.family != Family::OpenMpi;
        if is_c || (settings::is_off() && next.address().is_some()) {
            // The Fortran libraries of others call the entry points of C.
            return next.address().map_or(UNAVAILABLE, |at| words::call(at, words));
        }
        // The call may read what a freed receive has written.
        requests::poll_freed(&library.abi, false);
        let mut args = Args { words, style, abi: &library.abi };
        if row.plan.is_some() {
            if let Some(code) = collective::run(library, row, &mut args, begin) {
                return args.answer(code);
            }
        }
        if let Some(done) = collective::local::run(library, row, &args) {
            let code = done.map_or_else(|failure| raise(library, target(row, &args), failure), |()| 0);
            return args.answer(code);
        }
        let Replaced { mirrors, words: others, received, direct } = match mirrors(row, &args) {
            Ok(replaced) => replaced,
            Err(Trouble::Code(code)) => return args.answer(code),
            Err(Trouble::Negative) => {
                row.counts.add(Path::Refused);
                let code = refuse::raise(target(row, &args), library.abi.errors.count, NEGATIVE);
                return args.answer(code);
            }
            Err(Trouble::Failed(failure)) => {
                row.counts.add(Path::Refused);
                return args.answer(raise(library, target(row, &args), failure));
            }
        };
        let target = target(row, &args);
        for (at, word) in others {
            args.words[at] = word;
        }
        if !mirrors.is_empty() {
            let is_packed = mirrors.iter().all(Mirror::is_on_device);
            row.counts.add(if is_packed { Path::Packed } else { Path::Mirror });
        }
        let status = status_of(row).filter(|_| received.is_some());
        let _own = status.map(|at| args.want_statuses(at, 1));
        let (returned, kept) = match next.address() {
            Some(at) => (words::call(at, args.words), narrow::Arrays::default()),
            None if style == Style::Large => match narrow::call(row, &mut args) {
                Ok(done) => done,
                Err(narrow::TooLarge) => {
                    let words = "the MPI has no call for large counts, and a count is more than 2147483647";
                    return refuse::raise(target, library.abi.errors.count, words);
                }
            },
            None => return args.answer(UNAVAILABLE),
        };
        let code = args.code(returned);
        if code != 0 || (mirrors.is_empty() && kept.is_empty() && direct.is_empty()) {
            return returned;
        }
        let failure = match row.ends {
            Ends::Returns => {
                let bytes = status.map_or(0, |at| bytes_of(args.abi, args.words[at]));
                Mirrors { all: mirrors, received }.copy_back(bytes).err()
            }
            Ends::Request(at) | Ends::Persistent(at) => {
                requests::add(row, &args, at.into(), (Mirrors { all: mirrors, received }, kept, direct))
            }
            Ends::Epoch => {
                windows::add_origin(row, &args, mirrors);
                None
            }
            Ends::Split => {
                splits::add(target, mirrors);
                None
            }
        };
        match failure {
            None => returned,
            Some(failure) => args.answer(raise(library, target, failure)),
        }
    }
}

/// Begins a call that returns a request, by the MPI's own function: with mirrors, which are copied back when
/// it has completed; in `Err`, a code that was not raised.
///
/// # Safety
/// The arguments are those of the row's call in C, and valid until it has completed.
unsafe fn begin(
    library: &Library,
    row: &'static Row,
    args: &mut Args<'_>,
    function: usize,
) -> Result<Mirrors, c_int> {
    // SAFETY: the caller's promise.
    let replaced = unsafe { mirrors(row, args) }.map_err(|trouble| match trouble {
        Trouble::Code(code) => code,
        Trouble::Negative => refuse::code(library.abi.errors.count, NEGATIVE),
        Trouble::Failed(failure) => refuse::code_of(library, failure),
    });
    let Replaced { mirrors: all, words: others, received, .. } =
        replaced.inspect_err(|_| row.counts.add(Path::Refused))?;
    for (at, word) in others {
        args.words[at] = word;
    }
    if !all.is_empty() {
        row.counts.add(Path::Mirror);
    }
    // SAFETY: the caller's promise.
    match unsafe { words::call(function, args.words) } {
        0 => Ok(Mirrors { all, received }),
        code => Err(code),
    }
}

enum Trouble {
    /// The MPI's own error.
    Code(c_int),
    Negative,
    Failed(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Failed(failure)
    }
}

impl From<NotDescribed> for Trouble {
    fn from(why: NotDescribed) -> Trouble {
        match why {
            NotDescribed::Code(code) => Trouble::Code(code),
            NotDescribed::Negative => Trouble::Negative,
        }
    }
}

/// The argument that is the status of what a call receives before it returns.
fn status_of(row: &Row) -> Option<usize> {
    match row.name {
        "MPI_Recv" => Some(6),
        "MPI_Mrecv" => Some(4),
        "MPI_Sendrecv" => Some(11),
        _ => None,
    }
}

/// Whether a status says, when the operation is over, how much of the buffer is written: that of a message
/// that is received.
fn has_length(row: &Row, buf: &Buf) -> bool {
    let is_known = match row.ends {
        Ends::Returns => status_of(row).is_some(),
        // MPICH's status of MPI_Isendrecv has no length.
        Ends::Request(_) | Ends::Persistent(_) => row.bufs.len() == 1,
        Ends::Epoch | Ends::Split => false,
    };
    is_known && buf.direct && buf.dir == Dir::InOut && knows_lengths()
}

/// What the MPI gets in place of device memory: mirrors, and the arguments that name them.
#[derive(Default)]
struct Replaced {
    mirrors: Vec<Mirror>,
    words: Vec<(usize, usize)>,
    /// The mirror of which a status says how much is written.
    received: Option<usize>,
    /// Of a persistent request: device memory that the MPI's transport accesses.
    direct: Vec<usize>,
}

/// The mirrors of all buffers that are in device memory, with what the call reads.
unsafe fn mirrors(row: &'static Row, args: &Args<'_>) -> Result<Replaced, Trouble> {
    let mut replaced = Replaced::default();
    let is_waited_for = matches!(row.ends, Ends::Persistent(_)) && settings::sync() != settings::Sync::Off;
    let mut resolver = Resolver::new(args, row.on);
    for buf in row.bufs {
        let (at, word) = (usize::from(buf.at), args.words[usize::from(buf.at)]);
        let is_bottom = word == 0 || (args.style == Style::Fortran && fortran::is_bottom(word));
        if !is_bottom && (is_no_address(word) || is_host(word)) {
            continue;
        }
        // SAFETY: the caller's promise; so below.
        let described = unsafe { resolver.describe(buf) }?;
        let Some(described) = described else { continue };
        let base = if is_bottom { 0 } else { word };
        let Some(kind) = kind_of(base, is_bottom, &described.data.tree) else { continue };
        if buf.direct && described.is_dense && direct::is_possible(args.abi) {
            sync::wait_for(base);
            replaced.direct.extend(is_waited_for.then_some(base));
            row.counts.add(Path::Direct);
            continue;
        }
        // SAFETY: the caller's promise.
        let (access, of) = ((described.reads, described.writes), unsafe { target(row, args) });
        // SAFETY: the caller's promise.
        if let Some(words) = unsafe { one_block(buf, args, base, &described.data, of) }? {
            sync::wait_for(words[0].1);
            replaced.direct.extend(is_waited_for.then_some(words[0].1));
            row.counts.add(Path::Direct);
            replaced.words.extend(words);
            continue;
        }
        let (mut mirror, bytes) =
            mirror_of(buf, args, (base, kind), described.data, (access, of), &row.counts)?;
        replaced.words.extend(bytes);
        if mirror.is_in_order() && has_length(row, buf) {
            mirror.leave_unread();
            replaced.received = Some(replaced.mirrors.len());
        }
        sync::wait_for(mirror.first());
        // A persistent request reads its buffers when it is started. Intel MPI 2021.18 reads the root's own
        // part of MPI_Gather_init before. SAFETY: the caller's promise.
        unsafe { mirror.copy_in() }.map_err(Trouble::Failed)?;
        replaced.words.push((at, mirror.address()));
        replaced.mirrors.push(mirror);
    }
    Ok(replaced)
}

/// The arguments that name the data as bytes in the device's memory, where these are one block and the MPI's
/// transport takes such memory: the block begins elsewhere than the buffer, or its elements have gaps behind.
unsafe fn one_block(
    buf: &Buf,
    args: &Args<'_>,
    base: usize,
    data: &Data,
    target: Target,
) -> Result<Option<[(usize, usize); 3]>, Trouble> {
    let Some((first, len)) = data.tree.single().filter(|_| buf.direct && direct::is_possible(args.abi))
    else {
        return Ok(None);
    };
    let Some((count, datatype, _)) = as_bytes(buf, args).filter(|(_, _, most)| len <= *most) else {
        return Ok(None);
    };
    // SAFETY: the caller's promise: the arguments of the call.
    unsafe { check_committed(buf, args, target, data) }?;
    let at = base.wrapping_add_signed(first);
    Ok(Some([(usize::from(buf.at), at), (count, len), (datatype, args.abi.handles.byte)]))
}

/// A mirror, and the arguments that name it if it is one of bytes. Those are packed by a kernel of the
/// device, or lie farther apart than there is address space.
fn mirror_of(
    buf: &Buf,
    args: &Args<'_>,
    (base, kind): (usize, Option<Kind>),
    data: Data,
    (access, target): ((bool, bool), Target),
    counts: &'static Counts,
) -> Result<(Mirror, Vec<(usize, usize)>), Trouble> {
    let size = data.tree.size();
    let bytes = as_bytes(buf, args).filter(|(_, _, most)| size <= *most);
    let words = |(count, datatype, _)| vec![(count, size), (datatype, args.abi.handles.byte)];
    if let Some(bytes) = bytes.filter(|_| buf.direct && kernels::are_for(&data, base, kind)) {
        // SAFETY: the arguments of the call.
        unsafe { check_committed(buf, args, target, &data) }?;
        let is_on_device = settings::pack_least().is_some_and(|least| size >= least);
        if is_on_device && direct::is_possible(args.abi) {
            if let Ok(mirror) = Mirror::on_device(base, data.clone(), access, counts) {
                return Ok((mirror, words(bytes)));
            }
        }
        return Ok((Mirror::packed(base, kind, data, access, counts)?, words(bytes)));
    }
    match (Mirror::new(base, kind, data.clone(), access, buf.computes, counts), bytes) {
        (Err(Failure::NoMemory | Failure::TooFar), Some(bytes)) => {
            Ok((Mirror::packed(base, None, data, access, counts)?, words(bytes)))
        }
        (mirror, _) => Ok((mirror?, Vec::new())),
    }
}

/// Whether the MPI takes a datatype that it will not see: it refuses one that is not committed. Asked by a
/// message to MPI_PROC_NULL, once of each datatype.
unsafe fn check_committed(buf: &Buf, args: &Args<'_>, target: Target, data: &Data) -> Result<(), Trouble> {
    let (Type::One(datatype), Target::Comm(comm)) = (buf.datatype, target) else { return Ok(()) };
    let mut shapes = data.elements.iter().map(|elements| &elements.shape);
    if shapes.all(|shape| shape.is_committed.load(Relaxed)) {
        return Ok(());
    }
    // SAFETY: no byte is accessed of a message to MPI_PROC_NULL.
    unsafe {
        let datatype = args.datatype(datatype.into());
        pmpi!("Send", args.words[usize::from(buf.at)], 1, datatype, args.abi.proc_null, 0, comm)
    }
    .map_err(Trouble::Code)?;
    data.elements.iter().for_each(|elements| elements.shape.is_committed.store(true, Relaxed));
    Ok(())
}

/// The arguments that are the count and the datatype, and the most bytes, of a buffer whose data may be sent
/// and received as bytes: nothing is computed with them.
fn as_bytes(buf: &Buf, args: &Args<'_>) -> Option<(usize, usize, usize)> {
    let (Count::One(count), Type::One(datatype)) = (buf.count, buf.datatype) else { return None };
    let most = match args.style {
        Style::C => c_int::MAX as usize,
        Style::Large => isize::MAX as usize,
        Style::Fortran => return None,
    };
    (buf.direct || buf.dir == Dir::Bcast).then_some((count.into(), datatype.into(), most))
}

/// The kind of the device memory that the data are in, `Some(None)` where some are in memory of another kind;
/// `None` where all are in host memory. Where the buffer begins says nothing: its data may begin elsewhere.
fn kind_of(base: usize, is_bottom: bool, tree: &Tree) -> Option<Option<Kind>> {
    let (first, _) = tree.bounds()?;
    if !is_bottom {
        let kind = hmem::classify(base.wrapping_add_signed(first), 1);
        return (kind != Kind::System).then_some(Some(kind));
    }
    let is_all_host =
        tree.walk(&mut |at, len| hmem::classify(base.wrapping_add_signed(at), len) == Kind::System);
    (!is_all_host).then_some(None)
}

/// What the call is on, for errors.
unsafe fn target(row: &Row, args: &Args<'_>) -> Target {
    // SAFETY: by the table.
    unsafe {
        match row.on {
            On::Comm(at) | On::Root(_, at) => Target::Comm(args.comm(at.into())),
            On::Window(at, _) => Target::Window(args.window(at.into())),
            On::File(at) => Target::File(args.file(at.into())),
            On::Nothing => Target::Comm(args.abi.handles.world),
        }
    }
}

/// Raises the error that stands for a failure.
///
/// # Safety
/// The target is valid.
pub(crate) unsafe fn raise(library: &Library, target: Target, failure: Failure) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { refuse::raised(target, refuse::code_of(library, failure)) }
}
