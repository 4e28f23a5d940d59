//! Which bytes of its buffers a call reads and writes.

use core::ffi::c_int;

use crate::abi::Handle;
use crate::args::{Args, Style};
use crate::group::{Group, neighbours};
use crate::row::{Buf, Count, Dir, On, Peers, Places, Type, Whose};
use crate::shape::{Data, Shape, shape_of};
use std::sync::Arc;

/// What a call does to a buffer.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) data: Data,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Whether the data are one block that begins where the buffer does, and its datatype has no gaps.
    pub(crate) is_dense: bool,
}

/// Why it is not known which bytes those are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NotDescribed {
    /// The code of an error that the MPI has answered a question with.
    Code(c_int),
    /// A count is less than 0.
    Negative,
}

impl From<c_int> for NotDescribed {
    fn from(code: c_int) -> Self {
        NotDescribed::Code(code)
    }
}

/// This process's part in a collective call with a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Root,
    Member,
    /// In the root's group of an intercommunicator, and not the root.
    None,
}

/// Reads the arguments of one call.
#[derive(Debug)]
pub(crate) struct Resolver<'a> {
    args: &'a Args<'a>,
    on: On,
    group: Option<Group>,
    neighbours: Option<(usize, usize)>,
}

impl<'a> Resolver<'a> {
    /// Of a call with these arguments.
    pub(crate) fn new(args: &'a Args<'a>, on: On) -> Resolver<'a> {
        Resolver { args, on, group: None, neighbours: None }
    }

    unsafe fn comm(&self) -> Handle {
        match self.on {
            // SAFETY: by the table.
            On::Comm(at) | On::Root(_, at) => unsafe { self.args.comm(at.into()) },
            _ => 0,
        }
    }

    unsafe fn group(&mut self) -> Result<Group, NotDescribed> {
        if let Some(group) = self.group {
            return Ok(group);
        }
        // SAFETY: the call is on a communicator.
        let group = unsafe { Group::of(self.comm()) }?;
        self.group = Some(group);
        Ok(group)
    }

    /// How many processes that is.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(crate) unsafe fn peers(&mut self, peers: Peers) -> Result<usize, NotDescribed> {
        // SAFETY: the call is on a communicator.
        unsafe {
            match peers {
                Peers::All => Ok(self.group()?.peers),
                Peers::Local => Ok(self.group()?.local),
                Peers::Sources | Peers::Targets => {
                    let both = match self.neighbours {
                        Some(both) => both,
                        None => neighbours(self.args.abi, self.comm())?,
                    };
                    self.neighbours = Some(both);
                    Ok(if peers == Peers::Sources { both.0 } else { both.1 })
                }
            }
        }
    }

    /// Whether this process is the root, or there is none.
    ///
    /// # Safety
    /// As for [`Resolver::peers`].
    pub(crate) unsafe fn is_root(&mut self) -> bool {
        // SAFETY: the caller's promise.
        !matches!(self.on, On::Root(..)) || matches!(unsafe { self.part() }, Ok(Part::Root))
    }

    unsafe fn part(&mut self) -> Result<Part, NotDescribed> {
        let On::Root(root, _) = self.on else { return Ok(Part::Member) };
        // SAFETY: by the table.
        let (root, group) = unsafe { (self.args.int(root.into()), self.group()?) };
        Ok(match root {
            _ if !group.is_inter => {
                if root == group.rank {
                    Part::Root
                } else {
                    Part::Member
                }
            }
            x if x == self.args.abi.root => Part::Root,
            x if x == self.args.abi.proc_null => Part::None,
            _ => Part::Member,
        })
    }

    fn is_in_place(&self, buf: &Buf) -> bool {
        buf.partner.is_some_and(|at| self.args.is_in_place(self.args.words[usize::from(at)]))
    }

    /// Whether the buffer, its count and its datatype are significant in this process.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(crate) unsafe fn is_significant(&mut self, buf: &Buf) -> Result<bool, NotDescribed> {
        // SAFETY: the caller's promise.
        let part = unsafe { self.part()? };
        let is_inter = self.group.is_some_and(|group| group.is_inter);
        let counts = match (buf.whose, part) {
            (_, Part::None) => false,
            (Whose::Root, part) => part == Part::Root,
            // The root of an intercommunicator has no part in its own group's.
            (Whose::All, Part::Root) => !is_inter || buf.dir == Dir::Bcast,
            (Whose::All, _) => true,
        };
        Ok(counts && !self.args.lacks_arrays(buf))
    }

    /// What the call does to that buffer; `None` where it does nothing.
    ///
    /// # Safety
    /// The arguments are those of the call, and valid.
    pub(crate) unsafe fn describe(&mut self, buf: &Buf) -> Result<Option<Described>, NotDescribed> {
        // SAFETY: the caller's promise; so below.
        unsafe {
            if !self.is_significant(buf)? {
                return Ok(None);
            }
            let part = self.part()?;
            let in_place = self.is_in_place(buf);
            if self.is_negative(buf)? {
                return Err(NotDescribed::Negative);
            }
            let data = self.data(buf, in_place)?;
            if data.tree.is_empty() {
                return Ok(None);
            }
            let (reads, writes) = match buf.dir {
                Dir::In => (true, false),
                Dir::Out => (in_place, true),
                Dir::InOut => (true, true),
                Dir::Bcast if part == Part::Root => (true, false),
                Dir::Bcast => (false, true),
            };
            let is_dense = self.is_dense(buf, &data)?;
            Ok(Some(Described { data, reads, writes, is_dense }))
        }
    }

    /// Whether a count of it is less than 0. MPICH ends with a failed assertion of some calls that have one.
    unsafe fn is_negative(&mut self, buf: &Buf) -> Result<bool, NotDescribed> {
        let (args, wide) = (self.args, self.args.style == Style::Large);
        // SAFETY: the caller's promise: a count, or as many as there are peers.
        unsafe {
            let (at, peers) = match buf.count {
                Count::Single | Count::Bytes(_) | Count::Partitions(..) => return Ok(false),
                Count::One(at) | Count::Times(at, _) | Count::OwnOrTimes(at) => {
                    return Ok(args.signed(at.into()) < 0);
                }
                Count::Sum(at) | Count::OwnOrSum(at) => (at, Peers::Local),
                Count::Each(at, _, peers) => (at, peers),
            };
            Ok((0..self.peers(peers)?).any(|n| args.number_at(at.into(), n, wide) < 0))
        }
    }

    unsafe fn shape(&self, buf: &Buf, n: usize) -> Result<Arc<Shape>, NotDescribed> {
        // SAFETY: the caller's promise.
        let datatype = unsafe {
            match buf.datatype {
                Type::One(at) => self.args.datatype(at.into()),
                Type::Each(at) => self.args.datatype_at(at.into(), Some(n)),
                Type::Byte => self.args.abi.handles.byte,
            }
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { shape_of(self.args.abi, datatype) }?)
    }

    unsafe fn is_dense(&self, buf: &Buf, data: &Data) -> Result<bool, NotDescribed> {
        let (Count::One(at), Some((0, len))) = (buf.count, data.tree.single()) else { return Ok(false) };
        // SAFETY: the caller's promise.
        let (count, shape) = unsafe { (self.args.count(at.into()), self.shape(buf, 0)?) };
        Ok(usize::try_from(shape.extent).is_ok_and(|extent| extent * count == len))
    }

    unsafe fn several(&self, buf: &Buf, count: usize) -> Result<Data, NotDescribed> {
        if count == 0 {
            // Its datatype may be none.
            return Ok(Data::default());
        }
        // SAFETY: the caller's promise.
        Ok(Data::of(unsafe { self.shape(buf, 0) }?, count))
    }

    unsafe fn data(&mut self, buf: &Buf, in_place: bool) -> Result<Data, NotDescribed> {
        // SAFETY: the caller's promise; so below.
        unsafe {
            let args = self.args;
            let count = |at: u8| args.count(at.into());
            match buf.count {
                Count::Single => self.several(buf, 1),
                Count::One(at) => self.several(buf, count(at)),
                Count::Bytes(at) => self.several(buf, args.long(at.into())),
                Count::Partitions(groups, each) => {
                    let groups = usize::try_from(args.int(groups.into())).unwrap_or(0);
                    self.several(buf, groups * args.long(each.into()))
                }
                Count::Times(at, peers) => {
                    let count = count(at);
                    let peers = if count == 0 { 0 } else { self.peers(peers)? };
                    self.several(buf, count * peers)
                }
                Count::OwnOrTimes(at) => {
                    let peers = if in_place { self.peers(Peers::Local)? } else { 1 };
                    self.several(buf, count(at) * peers)
                }
                Count::OwnOrSum(at) if !in_place => {
                    let own = self.group()?.rank as usize;
                    self.several(buf, args.count_at(at.into(), own))
                }
                Count::Sum(at) | Count::OwnOrSum(at) => {
                    let peers = self.peers(Peers::Local)?;
                    let sum = (0..peers).map(|n| args.count_at(at.into(), n)).sum();
                    self.several(buf, sum)
                }
                Count::Each(at, places, peers) => {
                    let peers = self.peers(peers)?;
                    self.each(buf, at, places, peers)
                }
            }
        }
    }

    unsafe fn each(&self, buf: &Buf, at: u8, places: Places, peers: usize) -> Result<Data, NotDescribed> {
        let (args, mut data) = (self.args, Data::default());
        let is_large = args.style == Style::Large;
        for n in 0..peers {
            // SAFETY: the caller's promise: arrays with an element for each peer.
            unsafe {
                let count = args.count_at(at.into(), n);
                if count == 0 {
                    continue;
                }
                let shape = self.shape(buf, n)?;
                let by = match places {
                    Places::Extents(at) => args.number_at(at.into(), n, is_large) * shape.extent,
                    Places::Bytes(at) => args.number_at(at.into(), n, is_large),
                    Places::Addresses(at) => args.number_at(at.into(), n, true),
                };
                data.push(shape, count, by);
            }
        }
        Ok(data)
    }
}
