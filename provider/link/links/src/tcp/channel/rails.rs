//! Rails: further connections to a peer, by other interfaces, on which long frames travel.
//!
//! The first connection has the order of all frames. A long frame goes on it or on a rail, whole, and for one
//! on a rail the first connection has a note at its place ([`RailNote::Next`]). So the receiver takes from
//! one of them at a time, while the others fill what the kernel keeps for each. Where the note is read,
//! `current` is the rail's number until its frame is given back.
//!
//! `C` is a connection, which itself has [`Rails`].

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ipc::Watch;
use wire::Addr;
use wire::session::RailNote;

use crate::tcp::meet::handshake::Call;

/// What there is of a rail.
#[derive(Debug)]
pub(in crate::tcp) enum State<C> {
    /// This side makes it.
    Called(Box<Call>),
    /// Both sides have agreed on it.
    Attached(Box<C>),
}

/// A further connection.
#[derive(Debug)]
pub(in crate::tcp) struct Rail<C> {
    state: State<C>,
    /// Both sides know that it may be used.
    up: bool,
    /// Its addresses, here and there.
    here: SocketAddr,
    there: SocketAddr,
    /// It has ended, out of its turn, and is not used to send any more.
    ended: bool,
    /// What it is watched for, if it is.
    watch: Option<Watch>,
}

impl<C> Rail<C> {
    pub(in crate::tcp) fn new(
        state: State<C>,
        (here, there): (SocketAddr, SocketAddr),
        watch: Watch,
    ) -> Rail<C> {
        Rail { state, up: false, here, there, ended: false, watch: Some(watch) }
    }

    pub(in crate::tcp) fn state(&self) -> &State<C> {
        &self.state
    }

    pub(in crate::tcp) fn state_mut(&mut self) -> &mut State<C> {
        &mut self.state
    }

    /// The call of it was answered, and what it consists of is watched for what comes.
    pub(in crate::tcp) fn attach(&mut self, channel: C) {
        (self.state, self.watch) = (State::Attached(Box::new(channel)), Some(Watch::Read));
    }

    /// The call that makes it, if it is being made.
    pub(in crate::tcp) fn call(&self) -> Option<&Call> {
        if let State::Called(call) = &self.state { Some(call) } else { None }
    }

    pub(in crate::tcp) fn into_call(self) -> Option<Box<Call>> {
        if let State::Called(call) = self.state { Some(call) } else { None }
    }

    fn into_channel(self) -> Option<Box<C>> {
        if let State::Attached(channel) = self.state { Some(channel) } else { None }
    }

    pub(in crate::tcp) fn channel(&self) -> Option<&C> {
        if let State::Attached(channel) = &self.state { Some(channel) } else { None }
    }

    pub(in crate::tcp) fn channel_mut(&mut self) -> Option<&mut C> {
        if let State::Attached(channel) = &mut self.state { Some(channel) } else { None }
    }

    /// Its channel, if frames may be sent there, as far as the rail itself knows.
    pub(in crate::tcp) fn usable(&mut self) -> Option<&mut C> {
        let up = self.up && !self.ended;
        self.channel_mut().filter(|_| up)
    }

    /// Both sides know that it may be used.
    pub(in crate::tcp) fn set_up(&mut self) {
        self.up = true;
    }

    /// Its address on this host.
    pub(in crate::tcp) fn here(&self) -> SocketAddr {
        self.here
    }

    /// Its address at the peer.
    pub(in crate::tcp) fn there(&self) -> SocketAddr {
        self.there
    }

    /// It has ended, out of its turn, and is not used to send any more.
    pub(in crate::tcp) fn set_ended(&mut self) {
        self.ended = true;
    }

    pub(in crate::tcp) fn has_ended(&self) -> bool {
        self.ended
    }

    /// What it is watched for, if it is.
    pub(in crate::tcp) fn watch(&self) -> Option<Watch> {
        self.watch
    }

    /// Notes what it is watched for from now on; what that was before.
    pub(in crate::tcp) fn set_watch(&mut self, watch: Option<Watch>) -> Option<Watch> {
        std::mem::replace(&mut self.watch, watch)
    }
}

/// What a connection has of rails, where the endpoint is to use them.
#[derive(Debug)]
pub(in crate::tcp) struct Rails<C> {
    /// Whether this side makes them.
    calls: bool,
    /// The place of number 1 is the first one.
    all: Vec<Option<Rail<C>>>,
    /// The addresses at which rails can be made have gone to the other side, or come from it.
    offered: bool,
    /// Those that came, until they are used.
    addrs: Option<Vec<Addr>>,
    /// This rail has come up, which is to be logged.
    news: Option<u8>,
    /// What the connection itself is watched for.
    watch: Watch,
    /// The rail that the last long frame went on; 0: the connection itself.
    last: usize,
    /// The rail that a long frame waits for, since it had no room and the others would take longer; 0: none.
    full: usize,
    /// Since when nothing has come of a frame on a rail, though the other end has ended the connection.
    starved: Option<Instant>,
}

impl<C> Rails<C> {
    /// Places for so many, made by this side if it `calls`.
    pub(in crate::tcp) fn new(calls: bool, most: usize) -> Rails<C> {
        Rails {
            calls,
            all: std::iter::repeat_with(|| None).take(most).collect(),
            offered: false,
            addrs: None,
            news: None,
            // Whatever that is: it is set with the first rail.
            watch: Watch::Once,
            last: 0,
            full: 0,
            starved: None,
        }
    }

    /// How many there may be.
    pub(in crate::tcp) fn most(&self) -> usize {
        self.all.len()
    }

    /// The rail of this number, from 1 on.
    pub(in crate::tcp) fn get(&self, number: usize) -> Option<&Rail<C>> {
        self.all.get(number.checked_sub(1)?)?.as_ref()
    }

    pub(in crate::tcp) fn get_mut(&mut self, number: u8) -> Option<&mut Rail<C>> {
        self.place(number)?.as_mut()
    }

    pub(in crate::tcp) fn place(&mut self, number: u8) -> Option<&mut Option<Rail<C>>> {
        self.all.get_mut(usize::from(number).checked_sub(1)?)
    }

    pub(in crate::tcp) fn iter(&self) -> impl Iterator<Item = &Rail<C>> {
        self.all.iter().flatten()
    }

    /// All of them, and their numbers.
    pub(in crate::tcp) fn numbered_mut(&mut self) -> impl Iterator<Item = (u8, &mut Rail<C>)> {
        (1..).zip(&mut self.all).filter_map(|(number, rail)| rail.as_mut().map(|rail| (number, rail)))
    }

    /// Takes all of them out, at the end.
    pub(in crate::tcp) fn drain(&mut self) -> impl Iterator<Item = Rail<C>> + '_ {
        self.all.drain(..).flatten()
    }

    pub(in crate::tcp) fn into_channels(self) -> impl Iterator<Item = Box<C>> {
        self.all.into_iter().flatten().filter_map(Rail::into_channel)
    }

    pub(in crate::tcp) fn channels(&self) -> impl Iterator<Item = &C> {
        self.iter().filter_map(Rail::channel)
    }

    pub(in crate::tcp) fn channels_mut(&mut self) -> impl Iterator<Item = &mut C> {
        self.all.iter_mut().flatten().filter_map(Rail::channel_mut)
    }

    /// Those that are being made.
    pub(in crate::tcp) fn calls_mut(&mut self) -> impl Iterator<Item = &mut Call> {
        self.all.iter_mut().flatten().filter_map(|rail| match &mut rail.state {
            State::Called(call) => Some(&mut **call),
            State::Attached(_) => None,
        })
    }

    /// Those that may be used.
    pub(in crate::tcp) fn up(&self) -> impl Iterator<Item = &Rail<C>> {
        self.iter().filter(|rail| rail.up && !rail.ended)
    }

    /// Whether this side has yet to say to the other one where rails can be made to: from now on
    /// it has.
    pub(in crate::tcp) fn offer(&mut self) -> bool {
        !self.calls && !std::mem::replace(&mut self.offered, true)
    }

    /// Whether a rail of this number may be added that the other side has made.
    pub(in crate::tcp) fn takes(&self, number: u8) -> bool {
        let at = usize::from(number).checked_sub(1);
        let is_free = at.and_then(|at| self.all.get(at)).is_some_and(Option::is_none);
        !self.calls && self.offered && is_free
    }

    /// The other side says something of rails. The one that has the next frame, if that is what it says;
    /// an error: what is not its to say.
    pub(super) fn hear(&mut self, note: RailNote) -> Result<Option<u8>, &'static str> {
        match note {
            RailNote::At(_) if !self.calls || self.offered => return Err("addresses"),
            RailNote::At(all) => (self.offered, self.addrs) = (true, Some(all)),
            RailNote::Up(_) if self.calls => return Err("one is up"),
            RailNote::Up(number) => match self.get_mut(number) {
                Some(rail) if !rail.up && rail.channel().is_some() => {
                    rail.up = true;
                    self.news = Some(number);
                }
                _ => return Err("one is up that is none"),
            },
            RailNote::Next(number) => match self.get(usize::from(number)) {
                Some(rail) if rail.up && rail.channel().is_some() => return Ok(Some(number)),
                _ => return Err("a frame on one that is none"),
            },
            RailNote::Probe => return Err("a probe"),
        }
        Ok(None)
    }

    /// Whether something was heard that something is to be done for.
    pub(super) fn has_heard(&self) -> bool {
        self.addrs.is_some() || self.news.is_some()
    }

    /// Where the other side has said that rails can be made to, and which rail has come up, if it said so
    /// since this was asked last.
    pub(in crate::tcp) fn take_heard(&mut self) -> (Option<Vec<Addr>>, Option<u8>) {
        (self.addrs.take(), self.news.take())
    }

    /// What the connection itself is watched for.
    pub(in crate::tcp) fn watch(&self) -> Watch {
        self.watch
    }

    /// Notes what the connection itself is watched for from now on.
    pub(in crate::tcp) fn set_watch(&mut self, watch: Watch) {
        self.watch = watch;
    }

    /// The rail that the last long frame went on; 0: the connection itself.
    pub(super) fn last(&self) -> usize {
        self.last
    }

    /// A long frame went on this rail; 0: the connection itself.
    pub(super) fn set_last(&mut self, way: usize) {
        (self.last, self.full) = (way, 0);
    }

    /// A long frame waits for this rail.
    pub(super) fn set_full(&mut self, way: usize) {
        self.full = way;
    }

    /// The rail that a long frame waits for, if it has not ended.
    pub(super) fn full(&self) -> Option<&Rail<C>> {
        self.get(self.full).filter(|rail| !rail.ended)
    }

    /// Whether nothing has come for so long of a frame on a rail: the last that came is `received` ago;
    /// `None`: it is not waited for.
    pub(super) fn starves(&mut self, received: Option<Duration>, now: Instant, most: Duration) -> bool {
        // By two looks: what is there at neither may have come between them.
        let since = self
            .starved
            .filter(|since| received.is_some_and(|ago| now.saturating_duration_since(*since) < ago));
        self.starved = received.map(|_| since.unwrap_or(now));
        since.is_some_and(|since| now.saturating_duration_since(since) >= most)
    }
}
