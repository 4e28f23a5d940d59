//! What the last messages say about the next ones: the endpoint's predictors. Gains:
//! docs/measurements/predictors.md.
//!
//! | input | output | for |
//! |---|---|---|
//! | a large message is posted, progress | [`Adapt::is_in_a_row`] | eager sizes, cooperative copies |
//! | peers that large messages go to, progress | [`Adapt::goes_to_many`] | eager sizes of messages one way |
//! | peers that large messages come from | [`Adapt::comes_from_many`] | copied alone or together |
//! | messages offered, taken, received | [`Adapt::are_both_ways`] | which side copies |
//! | bytes sent since the last progress | [`Adapt::is_time_for_progress`] | to see a full ring |
//! | pieces copied in this call of progress | [`Adapt::has_time_to_copy`] | how long a call lasts |

use link_api::PeerId;

use crate::endpoint::parts::offered::Offered;
use crate::endpoint::parts::quota::{MESSAGE_COST, MOST_SINCE_PROGRESS};
use crate::endpoint::parts::sources::Sources;

/// Pieces of cooperative copies taken in one call of progress.
const MOST_PIECES: usize = 64;

/// Peers to which something large is begun in turn, with no progress between, that are not many.
const FEW_TARGETS: u8 = 2;

#[derive(Debug, Default)]
#[repr(C)]
pub(in crate::endpoint) struct Adapt {
    /// Bytes of messages sent since the last progress, see `bound`.
    bytes_since_progress: usize,
    /// Something large was begun, and no call of progress was made since.
    posting: bool,
    /// To how many peers in turn it was, while it is `posting`, and to which one at last.
    targets: u8,
    target: Option<PeerId>,
    /// Pieces of cooperative copies taken in this call of progress.
    pieces_taken: usize,
    offered: Offered,
    sources: Sources,
}

impl Adapt {
    /// A call of progress begins.
    #[inline(always)]
    pub(in crate::endpoint) fn note_progress(&mut self) {
        self.bytes_since_progress = 0;
        self.posting = false;
        self.pieces_taken = 0;
    }

    /// A call of progress begins that only takes in frames.
    #[inline(always)]
    pub(in crate::endpoint) fn note_short_progress(&mut self) {
        self.bytes_since_progress = 0;
        self.posting = false;
    }

    /// A message of so many bytes was sent.
    #[inline(always)]
    pub(in crate::endpoint) fn note_sent(&mut self, len: usize) {
        self.bytes_since_progress += len + MESSAGE_COST;
    }

    /// Whether so much was sent since the last progress that it is time for some.
    #[inline(always)]
    pub(in crate::endpoint) fn is_time_for_progress(&self) -> bool {
        self.bytes_since_progress >= MOST_SINCE_PROGRESS
    }

    /// Something large is begun to this peer.
    pub(in crate::endpoint) fn note_large(&mut self, peer: PeerId) {
        if !self.posting {
            (self.posting, self.targets, self.target) = (true, 0, None);
        }
        if self.target.replace(peer) != Some(peer) {
            self.targets = self.targets.saturating_add(1);
        }
    }

    /// Whether something large was begun to many peers in turn since the last progress.
    #[inline(always)]
    pub(in crate::endpoint) fn goes_to_many(&self) -> bool {
        self.posting && self.targets > FEW_TARGETS
    }

    /// Whether something large was begun since the last progress.
    #[inline(always)]
    pub(in crate::endpoint) fn is_in_a_row(&self) -> bool {
        self.posting
    }

    /// A large message comes from this peer.
    pub(in crate::endpoint) fn note_source(&mut self, peer: PeerId) {
        self.sources.count(peer);
    }

    /// Whether large messages come from more peers than help to copy.
    pub(in crate::endpoint) fn comes_from_many(&self) -> bool {
        self.sources.are_many()
    }

    /// A peer was offered a large message.
    pub(in crate::endpoint) fn note_offer(&mut self) {
        self.offered.offer();
    }

    /// One of those was taken, or has failed.
    pub(in crate::endpoint) fn note_taken(&mut self) {
        self.offered.end();
    }

    /// A large message was received.
    pub(in crate::endpoint) fn note_received(&mut self) {
        self.offered.take_in();
    }

    /// Whether peers are likely to take a message of this side while one is taken in here.
    pub(in crate::endpoint) fn are_both_ways(&self) -> bool {
        self.offered.are_both_ways()
    }

    /// So many pieces of cooperative copies were taken.
    pub(in crate::endpoint) fn note_pieces(&mut self, pieces: usize) {
        self.pieces_taken += pieces;
    }

    /// Whether this call of progress may take more of them.
    pub(in crate::endpoint) fn has_time_to_copy(&self) -> bool {
        self.pieces_taken < MOST_PIECES
    }
}
