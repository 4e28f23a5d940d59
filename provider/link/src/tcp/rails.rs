//! Rails: further connections to a peer, by other interfaces, on which long frames travel.
//!
//! The first connection has the order of all frames. A long frame goes on it or on a rail, whole, and for one
//! on a rail the first connection has a note at its place ([`RailNote::Next`]). So the receiver takes from
//! one of them at a time, while the others fill what the kernel keeps for each. Where the note is read,
//! `turn` is the rail's number until its frame is given back.
//!
//! `C` is a connection, which itself has [`Rails`].

use std::net::SocketAddr;
use std::time::Instant;

use ipc::Watch;
use wire::Addr;

use super::handshake::Call;

/// What there is of a rail.
#[derive(Debug)]
pub(super) enum State<C> {
    /// This side makes it.
    Called(Box<Call>),
    /// Both sides have agreed on it.
    Attached(Box<C>),
}

/// A further connection.
#[derive(Debug)]
pub(super) struct Rail<C> {
    pub(super) state: State<C>,
    /// Both sides know that it may be used.
    pub(super) up: bool,
    /// Its addresses, here and there.
    pub(super) here: SocketAddr,
    pub(super) there: SocketAddr,
    /// It has ended, out of its turn, and is not used to send any more.
    pub(super) ended: bool,
    /// What it is watched for, if it is.
    pub(super) watch: Option<Watch>,
}

impl<C> Rail<C> {
    pub(super) fn new(state: State<C>, (here, there): (SocketAddr, SocketAddr), watch: Watch) -> Rail<C> {
        Rail { state, up: false, here, there, ended: false, watch: Some(watch) }
    }

    pub(super) fn into_channel(self) -> Option<Box<C>> {
        if let State::Attached(channel) = self.state { Some(channel) } else { None }
    }

    pub(super) fn channel(&self) -> Option<&C> {
        if let State::Attached(channel) = &self.state { Some(channel) } else { None }
    }

    pub(super) fn channel_mut(&mut self) -> Option<&mut C> {
        if let State::Attached(channel) = &mut self.state { Some(channel) } else { None }
    }
}

/// What a connection has of rails, where the endpoint is to use them.
#[derive(Debug)]
pub(super) struct Rails<C> {
    /// Whether this side makes them.
    pub(super) calls: bool,
    /// The place of number 1 is the first one.
    pub(super) all: Vec<Option<Rail<C>>>,
    /// The other side was told where rails can be made to, or has told that.
    pub(super) offered: bool,
    /// What was told, until it is used.
    pub(super) told: Option<Vec<Addr>>,
    /// This rail has come up, which is to be told.
    pub(super) news: Option<u8>,
    /// What the connection itself is watched for.
    pub(super) watch: Watch,
    /// The rail that the last long frame went on; 0: the connection itself.
    pub(super) last: usize,
    /// The rail that a long frame waits for, since it had no room and the others would take longer; 0: none.
    pub(super) full: usize,
    /// Since when nothing has come of a frame on a rail, though the other end has ended the connection.
    pub(super) starved: Option<Instant>,
}

impl<C> Rails<C> {
    /// Places for so many, made by this side if it `calls`.
    pub(super) fn new(calls: bool, most: usize) -> Rails<C> {
        Rails {
            calls,
            all: std::iter::repeat_with(|| None).take(most).collect(),
            offered: false,
            told: None,
            news: None,
            // Whatever that is: it is set with the first rail.
            watch: Watch::Once,
            last: 0,
            full: 0,
            starved: None,
        }
    }

    pub(super) fn get(&mut self, number: u8) -> Option<&mut Rail<C>> {
        self.place(number)?.as_mut()
    }

    pub(super) fn place(&mut self, number: u8) -> Option<&mut Option<Rail<C>>> {
        self.all.get_mut(usize::from(number).checked_sub(1)?)
    }

    pub(super) fn channels(&mut self) -> impl Iterator<Item = &mut C> {
        self.all.iter_mut().flatten().filter_map(Rail::channel_mut)
    }

    /// Those that are being made.
    pub(super) fn calls(&mut self) -> impl Iterator<Item = &mut Call> {
        self.all.iter_mut().flatten().filter_map(|rail| match &mut rail.state {
            State::Called(call) => Some(&mut **call),
            State::Attached(_) => None,
        })
    }

    /// Those that may be used.
    pub(super) fn up(&self) -> impl Iterator<Item = &Rail<C>> {
        self.all.iter().flatten().filter(|rail| rail.up && !rail.ended)
    }
}
