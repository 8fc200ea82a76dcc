//! References to offers, coded as ranges, and the acknowledgments that use them.

use super::{AckStatus, Reason};
use crate::cbor::{CborError, Reader, Writer};
use crate::field::{Members, list, time};
use crate::limits::BATCH_COUNT_MAX;
use crate::time::Time;

/// Offers that one frame can speak of. Ranges cost the same however wide they are, so without
/// this a frame of a few bytes could send a reader through 2^64 references.
pub const REFS_COUNT_MAX: u64 = 1 << 20;

/// References `first`, `first + 1`, … of `count` offers. `count` is never 0 and the last
/// reference fits in a `u64`, in every range that was decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefRange {
    /// The first reference.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl RefRange {
    /// The last reference in the range.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.first.saturating_add(self.count.saturating_sub(1))
    }

    /// Every reference in the range.
    pub fn iter(self) -> impl Iterator<Item = u64> + use<> {
        (0..self.count).map(move |i| self.first.saturating_add(i))
    }

    /// The fewest ranges that cover `refs`, given in any order and with repetitions.
    #[must_use]
    pub fn collect(mut refs: Vec<u64>) -> Vec<Self> {
        refs.sort_unstable();
        refs.dedup();
        let mut ranges: Vec<Self> = Vec::new();
        for first in refs {
            match ranges.last_mut() {
                Some(range) if first - range.last() == 1 => range.count += 1,
                _ => ranges.push(Self { first, count: 1 }),
            }
        }
        ranges
    }

    pub(crate) fn write_all(ranges: &[Self], writer: &mut Writer) {
        writer.array(ranges.len());
        for range in ranges {
            writer.array(2).uint(range.first).uint(range.count);
        }
    }

    /// Reads ranges that ascend with a gap between any two: only one coding of a set is read.
    pub(crate) fn read_all(
        reader: &mut Reader<'_>,
        count_min: usize,
    ) -> Result<Vec<Self>, CborError> {
        let mut last = None;
        let mut refs = 0u64;
        list(reader, "refs", count_min..=BATCH_COUNT_MAX, |reader| {
            let (2, first, count) = (reader.array(2)?, reader.uint()?, reader.uint()?) else {
                return Err(CborError::invalid("refs", "a range is not a pair"));
            };
            let why = if count == 0 {
                Some("a range is empty")
            } else if first.checked_add(count - 1).is_none() {
                Some("a range runs past the last reference")
            } else if last.is_some_and(|last| first <= last) {
                Some("ranges overlap or go back")
            } else if last.is_some_and(|last| first - last == 1) {
                Some("two ranges touch and should be one")
            } else {
                refs = refs.saturating_add(count);
                (refs > REFS_COUNT_MAX).then_some("more references than a frame may speak of")
            };
            match why {
                Some(why) => Err(CborError::invalid("refs", why)),
                None => {
                    let range = Self { first, count };
                    last = Some(range.last());
                    Ok(range)
                }
            }
        })
    }
}

/// Offers of one connection that ended alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckRun {
    /// What became of them.
    pub status: AckStatus,
    /// When the last of them was settled, by the target's clock.
    pub acked_at: Time,
    /// Why they were declined or deferred.
    pub reason: Option<Reason>,
    /// Their references: ascending, apart from each other, and in no other run of the frame.
    pub refs: Vec<RefRange>,
}

impl AckRun {
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.map(3 + usize::from(self.reason.is_some()));
        writer.uint(0).uint(self.status.code());
        writer.uint(1).uint(self.acked_at.as_ms());
        writer.uint(2);
        RefRange::write_all(&self.refs, writer);
        if let Some(reason) = &self.reason {
            writer.uint(3).text(reason.as_str());
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, CborError> {
        let mut map = Members::open(reader)?;
        let run = Self {
            status: AckStatus::read(map.required(0)?)?,
            acked_at: time(map.required(1)?, "acked_at")?,
            refs: RefRange::read_all(map.required(2)?, 1)?,
            reason: map.optional(3)?.map(Reason::read).transpose()?,
        };
        map.end()?;
        Ok(run)
    }

    /// Refuses a reference that several runs speak of, and more ranges or references than one
    /// frame may hold.
    pub(crate) fn check_apart(runs: &[Self]) -> Result<(), CborError> {
        if runs.len() < 2 {
            return Ok(()); // One run was checked as it was read.
        }
        let mut all: Vec<RefRange> = runs.iter().flat_map(|run| run.refs.iter().copied()).collect();
        if all.len() > BATCH_COUNT_MAX {
            let (what, len, max) = ("ack ranges", all.len(), BATCH_COUNT_MAX);
            return Err(CborError::TooLarge { what, len, max, at: 0 });
        }
        all.sort_unstable();
        if all.iter().zip(all.iter().skip(1)).any(|(one, next)| next.first <= one.last()) {
            return Err(CborError::invalid("refs", "a reference is in two runs"));
        }
        if all.iter().fold(0u64, |sum, range| sum.saturating_add(range.count)) > REFS_COUNT_MAX {
            return Err(CborError::invalid("refs", "more references than a frame may speak of"));
        }
        Ok(())
    }
}
