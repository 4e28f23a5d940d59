//! Links that make memory of groups, and request it.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use hmem::Span;
use link_api::{GroupLink, GroupMemory, GroupName, GroupShape, Opening, PeerId, SLOTS};

use crate::group_memory::{Member, Memory, Offer};
use crate::hub::{Hub, Place};

/// The calls of a link at that place, whose peers these are.
pub(crate) struct Groups<'a> {
    pub(crate) hub: &'a Rc<RefCell<Hub>>,
    pub(crate) at: Place,
    pub(crate) peers: &'a [Option<Place>],
}

impl GroupLink for Groups<'_> {
    fn shares(&self, peer: PeerId) -> bool {
        let hub = self.hub.borrow();
        let host = |place: Place| hub.hosts.get(place).copied().unwrap_or(0);
        self.peers[peer.0 as usize].is_some_and(|place| host(place) == host(self.at))
    }

    fn create(&mut self, shape: GroupShape, to: &[PeerId]) -> io::Result<(GroupName, Box<dyn GroupMemory>)> {
        assert!(shape.is_valid());
        let mut hub = self.hub.borrow_mut();
        if hub.no_group_memory == Some(self.at) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let slots = || (0..SLOTS).map(|_| Span::leak(shape.slot)).collect();
        let published = vec![(0, 0); SLOTS as usize];
        let member = || Member { published: published.clone(), slots: slots(), finished: 0, asleep: false };
        let all = Arc::new(Mutex::new((0..shape.members).map(|_| member()).collect()));
        let to = to.iter().filter_map(|peer| self.peers[peer.0 as usize]).collect();
        hub.groups.push(Offer { all: Arc::clone(&all), slot: shape.slot, to });
        let name = GroupName { maker: self.at as u64, number: hub.groups.len() as u64 - 1 };
        Ok((name, Box::new(Memory { shape, all })))
    }

    fn open(&mut self, shape: GroupShape, maker: PeerId, name: GroupName) -> Opening {
        let mut hub = self.hub.borrow_mut();
        assert_eq!(self.peers[maker.0 as usize], Some(name.maker as Place));
        // An answer takes a while.
        if hub.draw(3) == 0 {
            hub.is_late = true;
            return Opening::Pending;
        }
        let offer = hub.groups.get(name.number as usize).filter(|o| o.to.contains(&self.at));
        match offer.filter(|o| o.slot == shape.slot && hub.no_group_memory != Some(self.at)) {
            Some(offer) => Opening::Open(Box::new(Memory { shape, all: Arc::clone(&offer.all) })),
            None => Opening::Denied("there is no such memory".into()),
        }
    }

    fn withdraw(&mut self, name: GroupName) {
        if let Some(offer) = self.hub.borrow_mut().groups.get_mut(name.number as usize) {
            offer.to.retain(|place| name.maker as Place != self.at && *place != self.at);
        }
    }
}
