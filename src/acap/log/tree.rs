//! Roots and proofs of a Merkle tree (RFC 9162 §2.1), from its nodes over powers of two, which never change.
//!
//! `node(level, at)` is the hash over the leaves from `at << level` on, `1 << level` of them.

use proto::batch::{Hash, node as join};
use sha2::{Digest as _, Sha256};

/// The hash over `count` leaves from `from` on, which is where such a part of a tree begins.
fn part<E>(node: &impl Fn(u32, u64) -> Result<Hash, E>, from: u64, count: u64) -> Result<Hash, E> {
    if count.is_power_of_two() {
        let level = count.trailing_zeros();
        return node(level, from >> level);
    }
    let half = half(count);
    Ok(join(&part(node, from, half)?, &part(node, from + half, count - half)?))
}

/// The largest power of two below a number over 1.
const fn half(count: u64) -> u64 {
    1 << (u64::BITS - 1 - (count - 1).leading_zeros())
}

/// The root over the first `size` leaves (RFC 9162 §2.1.1).
///
/// # Errors
/// A node cannot be had.
pub fn root<E>(node: &impl Fn(u32, u64) -> Result<Hash, E>, size: u64) -> Result<Hash, E> {
    if size == 0 { Ok(Sha256::digest([]).into()) } else { part(node, 0, size) }
}

/// What leads from a leaf to the root over the first `size`, from the bottom up (RFC 9162 §2.1.3.1).
///
/// # Errors
/// A node cannot be had.
pub fn inclusion<E>(
    node: &impl Fn(u32, u64) -> Result<Hash, E>,
    index: u64,
    size: u64,
) -> Result<Vec<Hash>, E> {
    let (mut from, mut count, mut path) = (0, size, Vec::new());
    while count > 1 {
        let half = half(count);
        if index < from + half {
            path.push(part(node, from + half, count - half)?);
            count = half;
        } else {
            path.push(part(node, from, half)?);
            (from, count) = (from + half, count - half);
        }
    }
    path.reverse();
    Ok(path)
}

/// What shows that the tree of `first` leaves is the beginning of that of `second` (RFC 9162 §2.1.4.1).
///
/// # Errors
/// A node cannot be had.
pub fn consistency<E>(
    node: &impl Fn(u32, u64) -> Result<Hash, E>,
    first: u64,
    second: u64,
) -> Result<Vec<Hash>, E> {
    let (mut from, mut count, mut path) = (0, second, Vec::new());
    if first == 0 || first >= second {
        return Ok(path);
    }
    while from + count != first {
        let half = half(count);
        if first <= from + half {
            path.push(part(node, from + half, count - half)?);
            count = half;
        } else {
            path.push(part(node, from, half)?);
            (from, count) = (from + half, count - half);
        }
    }
    // Who checks has the first root already, unless it is only a part of the way.
    if from > 0 {
        path.push(part(node, from, count)?);
    }
    path.reverse();
    Ok(path)
}

/// Whether `path` shows that a tree of `first` leaves is the beginning of one of `second`
/// (RFC 9162 §2.1.4.2).
#[must_use]
pub fn verify_consistency(
    (first, first_root): (u64, &Hash),
    (second, second_root): (u64, &Hash),
    path: &[Hash],
) -> bool {
    if first > second {
        return false;
    }
    if first == second {
        return path.is_empty() && first_root == second_root;
    }
    if first == 0 {
        return path.is_empty() && *first_root == <Hash>::from(Sha256::digest([]));
    }
    let (mut at, mut last) = (first - 1, second - 1);
    let shift = at.trailing_ones();
    (at, last) = (at >> shift, last >> shift);
    let mut rest = path.iter();
    let begin = if first.is_power_of_two() { Some(first_root) } else { rest.next() };
    let Some(begin) = begin else { return false };
    let (mut old, mut new) = (*begin, *begin);
    for hash in rest {
        if last == 0 {
            return false;
        }
        if at & 1 == 1 || at == last {
            (old, new) = (join(hash, &old), join(hash, &new));
            while at & 1 == 0 && at != 0 {
                (at, last) = (at >> 1, last >> 1);
            }
        } else {
            new = join(&new, hash);
        }
        (at, last) = (at >> 1, last >> 1);
    }
    last == 0 && old == *first_root && new == *second_root
}
