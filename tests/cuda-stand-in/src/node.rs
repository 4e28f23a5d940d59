//! Pieces of work: what is queued in a stream, and the nodes of a graph; user objects, which graphs hold.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::memop::MemOp;
use crate::ptx::Launch;
use crate::{INVALID_VALUE, Ptr, SUCCESS, enter};

pub(crate) type Function = unsafe extern "C" fn(Ptr);

/// What is queued in a stream, or is a node of a graph.
#[derive(Clone)]
pub(crate) enum Node {
    /// To, from, and how much.
    Copy(usize, usize, usize),
    /// A function of the program's, and its argument.
    Call(Function, usize),
    Kernel(Launch),
    Batch(Arc<[MemOp]>),
    /// Behind so much work of a stream.
    After(usize, u64),
    /// The end of a launch, up to which it holds these.
    Holds(#[expect(dead_code, reason = "dropped with the item")] Vec<Held>),
}

impl Node {
    /// Whether what it does may wait for something outside of the stream.
    pub(crate) fn may_take_long(&self) -> bool {
        match self {
            Node::Call(..) => true,
            Node::Kernel(launch) => launch.kernel.waits,
            _ => false,
        }
    }
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`.
const NO_SYNC: u32 = 1;

/// What is called at the end of the last graph, instance or launch that holds it.
struct Object {
    of: usize,
    end: Function,
    count: usize,
}

#[derive(Default)]
struct Objects {
    objects: HashMap<usize, Object>,
    made: usize,
}

fn objects() -> MutexGuard<'static, Objects> {
    static ALL: OnceLock<Mutex<Objects>> = OnceLock::new();
    ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reference.
pub(crate) struct Held(usize);

impl Held {
    /// The reference of a program, which says the name.
    pub(crate) fn of_program(object: usize) -> Option<Held> {
        objects().objects.contains_key(&object).then_some(Held(object))
    }

    /// Drops one reference to an object of these; whether there was one.
    pub(crate) fn take(all: &mut Vec<Held>, object: usize) -> bool {
        all.iter().position(|h| h.0 == object).map(|at| all.swap_remove(at)).is_some()
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        objects().objects.entry(self.0).and_modify(|o| o.count += 1);
        Held(self.0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut all = objects();
        let Some(object) = all.objects.get_mut(&self.0) else { return };
        object.count -= 1;
        if object.count == 0 {
            let (of, end) = (object.of, object.end);
            all.objects.remove(&self.0);
            // In a thread of the driver's, at some later time.
            std::thread::spawn(move || unsafe { end(of as Ptr) });
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuUserObjectCreate(
    object: *mut Ptr,
    of: Ptr,
    end: Function,
    count: u32,
    flags: u32,
) -> i32 {
    enter!("cuUserObjectCreate");
    if flags != NO_SYNC || count != 1 {
        return INVALID_VALUE;
    }
    let mut all = objects();
    all.made += 1;
    let name = 0x7000_0000 + all.made * 16;
    all.objects.insert(name, Object { of: of as usize, end, count: 1 });
    unsafe { *object = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuUserObjectRelease(object: Ptr, count: u32) -> i32 {
    enter!("cuUserObjectRelease");
    if count != 1 || !objects().objects.contains_key(&(object as usize)) {
        return INVALID_VALUE;
    }
    drop(Held(object as usize));
    SUCCESS
}
