//! The kernel that moves the bytes of an operation, unless the endpoint has failed, and clears and raises the
//! words of its pair.
//!
//! A copy by the driver would move what is in a slot after a wait that the watchdog has ended. The kernel
//! reads the error word first. A receive whose message has another length sets the error words of both sides
//! before anything behind it in the stream is done.
//!
//! Each store of a stream's memory operations waits for a fence of the whole system, and so for the host's
//! memory. A kernel of one block therefore does them itself: it clears the word that was waited for, and
//! behind the data and one fence raises the peer's. Of a kernel with several blocks none knows that the
//! others are done: there the stream raises the word.
//!
//! The words are in the host's memory, and loads of one word by several warps are served one after the other,
//! some 0.9 us each (H200): one thread of a block loads, and the others learn of it at a barrier.

use std::ffi::{CStr, CString};
use std::fmt::Write as _;

use hmem::cuda::{Function, PerContext, Stream};

use crate::error::Error;
use crate::failure::{self, Kind};
use crate::layout::{AT, BEGUN, ENDED, ERROR, LENGTH, LINE};

/// Threads of a block, and most blocks: few multiprocessors are taken.
const THREADS: u64 = 512;
const BLOCKS: u64 = 16;
/// Accesses of a thread before there is another block.
const PER_THREAD: u64 = 8;
/// Accesses of a thread that are under way together.
const TOGETHER: usize = 4;

/// Kernels by the bytes of an access: its type, what each of those together is loaded to, and the logarithm
/// of its size.
pub(crate) const WIDTHS: [(u64, &str, [&str; TOGETHER], u32); 3] = [
    (16, "v2.b64", ["{%d14, %d15}", "{%d20, %d21}", "{%d22, %d23}", "{%d24, %d25}"], 4),
    (4, "b32", ["%r8", "%r12", "%r13", "%r14"], 2),
    (1, "u8", ["%r8", "%r12", "%r13", "%r14"], 0),
];

/// Loads of accesses one stride from each other, and then their stores.
fn copies(ty: &str, values: &[&str]) -> String {
    let mut all = String::new();
    for (way, register) in [("ld", "%d13"), ("st", "%d12")] {
        for (i, value) in values.iter().enumerate() {
            let step =
                if i == 0 { String::new() } else { format!("    add.u64 {register}, {register}, %d28;\n") };
            let operands = if way == "ld" {
                format!("{value}, [{register}+0]")
            } else {
                format!("[{register}+0], {value}")
            };
            all += &format!("{step}    {way}.global.{ty} {operands};\n");
        }
    }
    all
}

/// What an operation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) len: usize,
    /// The line that was waited for, of this side's: its word is cleared.
    pub(crate) clear: Option<u32>,
    /// The slot of a message, and the second word that the line which was waited for has to have.
    pub(crate) slot: Option<(u32, u32)>,
    pub(crate) raise: Option<Raise>,
}

/// What is raised behind the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Raise {
    /// The peer's line.
    pub(crate) line: u32,
    /// The line's second word: of a message its bytes, and whether it goes on; otherwise 0.
    pub(crate) length: u32,
}

/// Where the words are that a move reads and writes: the lines of this side and of the peer, and the lane's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub(crate) own: usize,
    pub(crate) peer: usize,
    pub(crate) lane: usize,
}

/// A launch of the kernel.
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) arguments: Vec<u64>,
    /// The kernel raises the word, and says that the execution has ended; otherwise the stream does.
    pub(crate) raises: bool,
}

/// The kernels of a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels([Function; 3]);

fn module() -> String {
    let mut all = String::from(".version 6.0\n.target sm_60\n.address_size 64\n");
    for (size, ty, values, shift) in WIDTHS {
        let (several, one) = (copies(ty, &values), copies(ty, &values[..1]));
        let _ = write!(
            all,
            "
.visible .entry strait_stream_move{size}(.param .u64 to, .param .u64 from, .param .u64 count, \
.param .u64 error, .param .u64 other, .param .u64 lane, .param .u64 arrived, .param .u64 wanted, \
.param .u64 mine, .param .u64 theirs, .param .u64 clear, .param .u64 raise, .param .u64 value, \
.param .u64 ended, .param .u64 number)
{{
    .reg .pred %p<10>;
    .reg .b32 %r<15>;
    .reg .b64 %d<29>;
    ld.param.u64 %d0, [to];
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [count];
    ld.param.u64 %d3, [error];
    ld.param.u64 %d4, [other];
    ld.param.u64 %d5, [lane];
    ld.param.u64 %d6, [arrived];
    ld.param.u64 %d7, [wanted];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %nctaid.x;
    mul.wide.u32 %d8, %r1, %r2;
    cvt.u64.u32 %d9, %r0;
    add.u64 %d8, %d8, %d9;
    mul.wide.u32 %d10, %r2, %r3;
    setp.ne.u64 %p0, %d8, 0;
    setp.ne.u32 %p5, %r0, 0;
    setp.eq.u64 %p2, %d6, 0;
    or.pred %p2, %p2, %p5;
    cvt.u32.u64 %r7, %d7;
    mov.u32 %r5, 0;
    mov.u32 %r6, %r7;
    @!%p0 ld.volatile.global.u32 %r4, [%d5+{BEGUN}];
    @!%p5 ld.volatile.global.u32 %r5, [%d3+0];
    @!%p2 ld.volatile.global.u32 %r6, [%d6+0];
    setp.ne.u32 %p1, %r5, 0;
    setp.ne.u32 %p7, %r6, %r7;
    or.pred %p8, %p1, %p7;
    bar.red.or.pred %p9, 0, %p8;
    @%p0 bra CHECK{size};
    mov.u32 %r11, 0;
    st.volatile.global.u32 [%d5+{AT}], %r11;
    add.u32 %r4, %r4, 1;
    st.volatile.global.u32 [%d5+{BEGUN}], %r4;
    ld.param.u64 %d16, [clear];
    setp.eq.u64 %p3, %d16, 0;
    @%p3 bra CHECK{size};
    st.volatile.global.u32 [%d16+0], %r11;
CHECK{size}:
    @!%p9 bra COPY{size};
    @%p0 bra END{size};
    @%p1 bra END{size};
    ld.param.u64 %d16, [mine];
    ld.param.u64 %d17, [theirs];
    cvt.u32.u64 %r9, %d16;
    cvt.u32.u64 %r10, %d17;
    st.volatile.global.u32 [%d4+0], %r10;
    membar.sys;
    st.volatile.global.u32 [%d3+0], %r9;
    bra END{size};
COPY{size}:
    shl.b64 %d28, %d10, {shift};
    shl.b64 %d26, %d10, 2;
    sub.u64 %d27, %d26, %d10;
SEVERAL{size}:
    add.u64 %d11, %d8, %d27;
    setp.ge.u64 %p3, %d11, %d2;
    @%p3 bra LOOP{size};
    shl.b64 %d11, %d8, {shift};
    add.u64 %d12, %d0, %d11;
    add.u64 %d13, %d1, %d11;
{several}    add.u64 %d8, %d8, %d26;
    bra SEVERAL{size};
LOOP{size}:
    setp.ge.u64 %p3, %d8, %d2;
    @%p3 bra END{size};
    shl.b64 %d11, %d8, {shift};
    add.u64 %d12, %d0, %d11;
    add.u64 %d13, %d1, %d11;
{one}    add.u64 %d8, %d8, %d10;
    bra LOOP{size};
END{size}:
    ld.param.u64 %d16, [raise];
    ld.param.u64 %d17, [ended];
    or.b64 %d18, %d16, %d17;
    setp.ne.u64 %p4, %d18, 0;
    @%p4 bra RAISE{size};
    membar.sys;
    ret;
RAISE{size}:
    bar.sync 0;
    @%p0 bra LAST{size};
    membar.sys;
    setp.eq.u64 %p3, %d16, 0;
    @%p3 bra ENDED{size};
    ld.param.u64 %d19, [value];
    st.volatile.global.u64 [%d16+0], %d19;
    setp.eq.u64 %p3, %d17, 0;
    @%p3 bra LAST{size};
    membar.sys;
ENDED{size}:
    ld.param.u64 %d19, [number];
    cvt.u32.u64 %r11, %d19;
    st.volatile.global.u32 [%d17+0], %r11;
LAST{size}:
    ret;
}}
"
        );
    }
    all
}

static LOADED: PerContext<Kernels> = PerContext::new();

/// The kernels for a stream's context, which has this number. All is compiled at the first call for a
/// context.
pub(crate) fn load(stream: Stream, id: u64) -> Result<Kernels, Error> {
    LOADED.get((stream.context(), id), || {
        let names = [c"strait_stream_move16", c"strait_stream_move4", c"strait_stream_move1"];
        load_all(stream, &module(), names).map(Kernels)
    })
}

/// Those of a module.
pub(crate) fn load_all(stream: Stream, text: &str, names: [&CStr; 3]) -> Result<[Function; 3], Error> {
    let failed = |why: String| Error::Kernel(why);
    let text = CString::new(text).map_err(|e| failed(e.to_string()))?;
    let one = |name| stream.load(&text, name).map_err(|e| failed(e.to_string()));
    Ok([one(names[0])?, one(names[1])?, one(names[2])?])
}

/// The number of a stream's context.
pub(crate) fn context_id(stream: Stream) -> Result<u64, Error> {
    stream.context_id().map_err(|e| Error::Kernel(e.to_string()))
}

impl Kernels {
    /// What does a move. `ended`: with it the execution of this number ends.
    pub(crate) fn launch(&self, m: &Move, lines: &Lines, ended: Option<u32>) -> Launch {
        let all = (m.to | m.from | m.len) as u64;
        let which = WIDTHS.iter().position(|w| all % w.0 == 0).unwrap_or(2);
        let count = m.len as u64 / WIDTHS[which].0;
        let threads = count.clamp(1, THREADS);
        let blocks = count.div_ceil(threads * PER_THREAD).clamp(1, BLOCKS);
        let raises = blocks == 1;
        let own = |line: u32| lines.own + line as usize * LINE;
        let arrived = m.slot.and(m.clear).map_or(0, |line| own(line) + LENGTH);
        let raise = m.raise.filter(|_| raises);
        let (slot, wanted) = m.slot.unwrap_or((0, 0));
        let mine = failure::word(libc::EMSGSIZE, Kind::Receive, slot);
        let arguments = vec![
            m.to as u64,
            m.from as u64,
            count,
            (lines.own + ERROR) as u64,
            (lines.peer + ERROR) as u64,
            lines.lane as u64,
            arrived as u64,
            wanted.into(),
            mine.into(),
            failure::of_peer(mine).into(),
            m.clear.map_or(0, own) as u64,
            raise.map_or(0, |r| lines.peer + r.line as usize * LINE) as u64,
            raise.map_or(0, |r| 1 | u64::from(r.length) << (8 * LENGTH)),
            if ended.is_some() && raises { (lines.lane + ENDED) as u64 } else { 0 },
            ended.unwrap_or(0).into(),
        ];
        Launch { function: self.0[which], blocks: blocks as u32, threads: threads as u32, arguments, raises }
    }
}
