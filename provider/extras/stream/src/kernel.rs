//! The kernel that moves the bytes of an operation, unless the endpoint has failed.
//!
//! A copy by the driver would move what is in a slot after a wait that the watchdog has ended. The kernel
//! reads the error word first. A receive whose message has another length sets the error words of both sides
//! before anything behind it in the stream is done.

use std::fmt::Write as _;

use hmem::cuda::{Function, PerContext, Stream};

use crate::error::Error;
use crate::failure::{self, Kind};

/// Threads of a block, and most blocks: few multiprocessors are taken.
const THREADS: u64 = 256;
const BLOCKS: u64 = 16;
/// Accesses of a thread before there is another block.
const PER_THREAD: u64 = 4;

/// Kernels by the bytes of an access: its type, what it loads to, and the logarithm of its size.
const WIDTHS: [(u64, &str, &str, u32); 3] =
    [(16, "v2.b64", "{%d14, %d15}", 4), (4, "b32", "%r8", 2), (1, "u8", "%r8", 0)];

/// What an operation moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) len: usize,
    /// The word that has the length of the message, and the slot; the length has to be `len`.
    pub(crate) arrived: Option<(usize, u32)>,
}

/// The words that a move reads and writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guards {
    pub(crate) error: usize,
    pub(crate) peer_error: usize,
    pub(crate) begun: usize,
}

/// A launch of the kernel.
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) arguments: [u64; 10],
}

/// The kernels of a context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernels([Function; 3]);

fn module() -> String {
    let mut all = String::from(".version 6.0\n.target sm_60\n.address_size 64\n");
    for (size, ty, value, shift) in WIDTHS {
        let _ = write!(
            all,
            "
.visible .entry strait_stream_move{size}(.param .u64 to, .param .u64 from, .param .u64 count, \
.param .u64 error, .param .u64 other, .param .u64 begun, .param .u64 arrived, .param .u64 wanted, \
.param .u64 mine, .param .u64 theirs)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .b64 %d<20>;
    ld.param.u64 %d0, [to];
    ld.param.u64 %d1, [from];
    ld.param.u64 %d2, [count];
    ld.param.u64 %d3, [error];
    ld.param.u64 %d4, [other];
    ld.param.u64 %d5, [begun];
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
    @%p0 bra CHECK{size};
    ld.volatile.global.u32 %r4, [%d5+0];
    add.u32 %r4, %r4, 1;
    st.global.u32 [%d5+0], %r4;
CHECK{size}:
    ld.volatile.global.u32 %r5, [%d3+0];
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra END{size};
    setp.eq.u64 %p2, %d6, 0;
    @%p2 bra LOOP{size};
    ld.volatile.global.u32 %r6, [%d6+0];
    cvt.u32.u64 %r7, %d7;
    setp.eq.u32 %p2, %r6, %r7;
    @%p2 bra LOOP{size};
    @%p0 bra END{size};
    ld.param.u64 %d16, [mine];
    ld.param.u64 %d17, [theirs];
    cvt.u32.u64 %r9, %d16;
    cvt.u32.u64 %r10, %d17;
    st.global.u32 [%d4+0], %r10;
    membar.sys;
    st.global.u32 [%d3+0], %r9;
    bra END{size};
LOOP{size}:
    setp.ge.u64 %p3, %d8, %d2;
    @%p3 bra END{size};
    shl.b64 %d11, %d8, {shift};
    add.u64 %d12, %d0, %d11;
    add.u64 %d13, %d1, %d11;
    ld.global.{ty} {value}, [%d13+0];
    st.global.{ty} [%d12+0], {value};
    add.u64 %d8, %d8, %d10;
    bra LOOP{size};
END{size}:
    membar.sys;
    ret;
}}
"
        );
    }
    all.push('\0');
    all
}

static LOADED: PerContext<Kernels> = PerContext::new();

/// The kernels for a stream's context, which has this number. All is compiled at the first call for a
/// context.
pub(crate) fn load(stream: Stream, id: u64) -> Result<Kernels, Error> {
    LOADED.get((stream.context(), id), || {
        let text = module();
        let text = std::ffi::CStr::from_bytes_with_nul(text.as_bytes())
            .map_err(|_| Error::Kernel("its text has a NUL".into()))?;
        let one = |name| stream.load(text, name).map_err(|e| Error::Kernel(e.to_string()));
        Ok(Kernels([
            one(c"strait_stream_move16")?,
            one(c"strait_stream_move4")?,
            one(c"strait_stream_move1")?,
        ]))
    })
}

/// The number of a stream's context.
pub(crate) fn context_id(stream: Stream) -> Result<u64, Error> {
    stream.context_id().map_err(|e| Error::Kernel(e.to_string()))
}

impl Kernels {
    /// What does a move.
    pub(crate) fn launch(&self, m: &Move, guards: &Guards) -> Launch {
        let all = (m.to | m.from | m.len) as u64;
        let which = WIDTHS.iter().position(|w| all % w.0 == 0).unwrap_or(2);
        let count = m.len as u64 / WIDTHS[which].0;
        let threads = count.clamp(1, THREADS);
        let blocks = count.div_ceil(threads * PER_THREAD).clamp(1, BLOCKS);
        let (arrived, slot) = m.arrived.unwrap_or((0, 0));
        let mine = failure::word(libc::EMSGSIZE, Kind::Receive, slot);
        let arguments = [
            m.to as u64,
            m.from as u64,
            count,
            guards.error as u64,
            guards.peer_error as u64,
            guards.begun as u64,
            arrived as u64,
            m.len as u64,
            mine.into(),
            failure::of_peer(mine).into(),
        ];
        Launch { function: self.0[which], blocks: blocks as u32, threads: threads as u32, arguments }
    }
}
