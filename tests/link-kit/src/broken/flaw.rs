//! The flaws.

/// What a [`Broken`] link does wrong: each against one clause of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Flaw {
    /// None: all checks have to pass.
    Nothing,
    DropsFrames,
    SwapsFrames,
    RepeatsFrames,
    MovesFramesToAnotherPeer,
    SaysFramesAreLonger,
    ForgetsOffsetOfBody,
    ForgetsOffsetOfRead,
    ForgetsOffsetOfDestination,
    PeeksTooFar,
    TakesMoreWithLastCopy,
    TakesAPart,
    TakesNoFrame,
    StaysCorked,
    CutsLongFrames,
    SaysFramesAreShort,
    CopiesLate,
    IsBusyThoughSent,
    HoldsNothing,
    HasAlwaysRoom,
    LosesFrameLookedAt,
    SaysNothingOfEnds,
    LosesFramePutBack,
    LooksAtAnyPeer,
    HasAlwaysFrames,
    ForgetsNames,
    OneNumberForTwo,
    ChangesPath,
    IsAlwaysConnected,
    IsNeverConnected,
    TakesFramesForNobody,
    ServesHostAlways,
    ServesHostNeverAgain,
    ForgetsConnected,
    NeverForgets,
    DescribesNothing,
    ReportsEndFirst,
    ReportsEndTwice,
    ReportsNoEnd,
    CutsNobodyOff,
    CutsAllOff,
    ExpectsNobody,
    GivesUpThosePresent,
    SleepsInSpiteOfFrames,
    LosesWakeUps,
    NeverSleeps,
    LosesWakeUpsSometimes,
    SaysItIsArmed,
    ForgetsRemoteOffset,
    ForgetsLocalOffset,
    SaysAllIsWell,
    AllowsWhatWasTakenBack,
    TakesBackAll,
    NeverRenews,
    NeverCloses,
    KeepsPublishing,
    PublishesNothingNew,
    OneVersionForAll,
    GivesPiecesTwice,
    KeepsGivingPieces,
    GivesPiecesToOldNames,
    NeverBegun,
    AccessesInTheCall,
    IsDoneAtOnce,
    IsDoneTwice,
    SaysAllIsDone,
    ReusesOperations,
    ExportsAgain,
    ExportsOncePerLink,
    NeverCancels,
    ReportsCancelled,
    NeverTakesBack,
    AllowsTakenBackStarts,
}

impl Flaw {
    /// Whether it is found by something that does not happen, however long it is waited for.
    pub(super) fn shows_by_waiting(self) -> bool {
        use Flaw::*;
        let wakes = [SleepsInSpiteOfFrames, LosesWakeUps, NeverSleeps, LosesWakeUpsSometimes];
        let reports = [ReportsNoEnd, CutsNobodyOff, ExpectsNobody, DropsFrames, SaysNothingOfEnds];
        let frames = [TakesMoreWithLastCopy, StaysCorked];
        wakes.contains(&self) || reports.contains(&self) || frames.contains(&self)
    }
}
