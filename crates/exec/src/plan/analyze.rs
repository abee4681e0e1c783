//! What a filter lets one index do: bounds for its fields, and what is left to check.

use std::sync::Arc;

use sheaf_bson::{Binary, Value};
use sheaf_collation::SharedCollator;
use sheaf_expr::ParseCx;
use sheaf_geo::Indexing;
use sheaf_query::matcher::{Leaf, MatchExpr, Matcher, Test};
use sheaf_query::path::{Part, Path};
use sheaf_storage::{Index, IndexKind};

use crate::bounds::predicate::{FieldTraits, compares_strings, negated_bounds, test_bounds};
use crate::bounds::{FieldBounds, IndexBounds, Interval, Intervals, Tightness, implication};

/// One conjunct of a filter, brought down to a path.
struct Predicate<'m> {
    path: String,
    test: &'m Test,
    negated: bool,
    /// Number of the top-level conjunct that it comes from.
    conjunct: usize,
    /// The `$elemMatch` in which it stands: conditions of one group hold for one array element.
    group: Option<usize>,
    /// See [`Within::takes_array_for_document`].
    takes_array_for_document: bool,
}

/// Where in a filter conditions stand.
#[derive(Clone, Copy)]
struct Within<'p> {
    /// The path of the `$elemMatch` that they are in; empty outside of any.
    prefix: &'p str,
    /// Number of the top-level conjunct.
    conjunct: usize,
    /// See [`Predicate::group`].
    group: Option<usize>,
    /// A path within `$elemMatch` begins with a number: it is a field of the element, and where that is an array, a position in it. In
    /// the index the whole path's number is a position in the outer array.
    takes_array_for_document: bool,
}

impl Within<'_> {
    fn path(&self, path: &Path) -> String {
        if self.prefix.is_empty() {
            path.dotted().to_owned()
        } else {
            format!("{}.{}", self.prefix, path.dotted())
        }
    }

    /// Whether keys of the whole path may lack what is at this path in the elements.
    fn may_lack(&self, path: &Path) -> bool {
        let begins_with_number = path.parts().first().is_some_and(Part::is_index);
        self.takes_array_for_document || self.group.is_some() && begins_with_number
    }

    fn predicate<'m>(&self, leaf: &'m Leaf, negated: bool) -> Predicate<'m> {
        Predicate {
            path: self.path(&leaf.path),
            test: &leaf.test,
            negated,
            conjunct: self.conjunct,
            group: self.group,
            takes_array_for_document: self.may_lack(&leaf.path),
        }
    }
}

/// The use of one index for a filter.
#[derive(Clone)]
pub struct IndexUse {
    /// The index.
    pub index: Arc<Index>,
    /// What to scan.
    pub bounds: IndexBounds,
    /// Fields as the scan has them (a wildcard index expands to the path that it is used for).
    pub fields: Vec<(String, bool)>,
    /// Conjuncts (by number) of which the bounds leave nothing to check.
    pub exact: Vec<usize>,
    /// Conjuncts that the key alone can check.
    pub covered: Vec<usize>,
    /// Some array makes several keys of one document.
    pub multikey: bool,
    /// See [`crate::index::compares_strings_alike`].
    pub strings_alike: bool,
}

/// The top-level conjuncts of a condition.
pub fn conjuncts(expr: &MatchExpr) -> &[MatchExpr] {
    match expr {
        MatchExpr::And(children) => children,
        MatchExpr::AlwaysTrue => &[],
        other => std::slice::from_ref(other),
    }
}

/// The children that a [`super::FilterPart`] numbers: conjuncts or branches.
pub fn conjuncts_or_branches(expr: &MatchExpr) -> &[MatchExpr] {
    match expr {
        MatchExpr::And(children) | MatchExpr::Or(children) => children,
        _ => &[],
    }
}

/// Whether the planner may use the index at all for this filter.
pub fn eligible(index: &Index, expr: &MatchExpr) -> bool {
    // Words of texts serve `$text` only.
    if !index.ready || index.hidden || index.kind == IndexKind::Text {
        return false;
    }
    match &index.partial {
        None => true,
        Some(filter) => {
            let mut cx = ParseCx::new().with_collator(index.collator.clone());
            Matcher::parse(filter.as_raw(), &mut cx)
                .is_ok_and(|filter| implication::implies(expr, filter.root()))
        }
    }
}

/// What bounds the index gets from the filter; `None` if the filter says nothing about its first field.
/// A wildcard index may serve several paths, each a use of its own.
pub fn uses(collator: Option<&SharedCollator>, index: &Arc<Index>, expr: &MatchExpr) -> Vec<IndexUse> {
    let alike = crate::index::compares_strings_alike(index, collator);
    let mut predicates = Vec::new();
    let mut groups = 0;
    for (conjunct, part) in conjuncts(expr).iter().enumerate() {
        let within = Within { prefix: "", conjunct, group: None, takes_array_for_document: false };
        collect(part, within, &mut groups, &mut predicates);
    }
    if index.kind == IndexKind::Text {
        return Vec::new();
    }
    if index.kind == IndexKind::Wildcard {
        return super::wildcard::expand(index, &predicates_paths(&predicates))
            .into_iter()
            .filter_map(|fields| bound(index, fields, &predicates, alike))
            .collect();
    }
    bound(index, index.fields.clone(), &predicates, alike).into_iter().collect()
}

fn predicates_paths<'p>(predicates: &'p [Predicate<'_>]) -> Vec<&'p str> {
    let mut paths: Vec<&str> = predicates.iter().map(|p| &*p.path).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

fn collect<'m>(expr: &'m MatchExpr, within: Within<'_>, groups: &mut usize, out: &mut Vec<Predicate<'m>>) {
    match expr {
        MatchExpr::And(children) => {
            for child in children {
                collect(child, within, groups, out);
            }
        }
        MatchExpr::Leaf(leaf) => match &leaf.test {
            Test::ElemMatchObject(inner) => {
                // Nested groups count as the outer one's, which only widens what is scanned.
                let group = within.group.unwrap_or_else(|| {
                    *groups += 1;
                    *groups
                });
                let prefix = within.path(&leaf.path);
                let inside = Within {
                    prefix: &prefix,
                    group: Some(group),
                    takes_array_for_document: within.may_lack(&leaf.path),
                    ..within
                };
                collect(inner, inside, groups, out);
            }
            _ => out.push(within.predicate(leaf, false)),
        },
        MatchExpr::Not(child) => {
            if let MatchExpr::Leaf(leaf) = &**child {
                out.push(within.predicate(leaf, true));
            }
        }
        _ => {}
    }
}

/// Length of the longest prefix of the path that is an array in some document, in path components;
/// 0 when none is.
fn multikey_prefix(paths: &Option<Vec<Vec<usize>>>, field: usize, path: &str, multikey: bool) -> usize {
    match paths {
        Some(paths) => paths.get(field).and_then(|p| p.iter().max()).map_or(0, |at| at + 1),
        None if multikey => path.split('.').count(),
        None => 0,
    }
}

/// `alike`: see [`IndexUse::strings_alike`].
fn bound(
    index: &Arc<Index>,
    fields: Vec<(String, bool)>,
    predicates: &[Predicate<'_>],
    alike: bool,
) -> Option<IndexUse> {
    let multikey = index.multikey();
    let paths = if index.kind == IndexKind::Wildcard { None } else { index.multikey_paths() };
    let hashed = crate::index::hashed_fields(index);
    let mut out = IndexUse {
        index: index.clone(),
        bounds: IndexBounds::default(),
        fields: Vec::new(),
        exact: Vec::new(),
        covered: Vec::new(),
        multikey,
        strings_alike: alike,
    };
    // For each conjunct: parts seen, and the loosest of their tightnesses.
    let mut served: Vec<(usize, Tightness)> = Vec::new();
    let mut used: Vec<UsedField> = Vec::new();
    let mut scan_fields = Vec::with_capacity(fields.len() + 1);
    let wildcard = index.kind == IndexKind::Wildcard;
    let mut near_geometries = index.indexing().is_none();
    for (at, (path, descending)) in fields.iter().enumerate() {
        let is_wild = wildcard && super::wildcard::wildcard_root(&index.fields[at].0).is_some();
        let prefix = multikey_prefix(&paths, at, path, multikey);
        let traits = FieldTraits {
            hashed: hashed.get(at).copied().unwrap_or(false),
            multikey: prefix > 0,
            sparse: index.sparse || index.kind == IndexKind::Wildcard,
            only_with_it: is_wild || index.sparse && index.fields.len() == 1,
            // The first name is a field's, and a wildcard index that is not multikey has seen no array.
            numeric_path: path.split('.').skip(1).any(is_number) && (!is_wild || prefix > 0),
            at_position: path.rsplit_once('.').is_some_and(|(_, last)| is_number(last)),
            collator: index.collator.as_deref(),
        };
        if let Some(indexing) = index.indexing() {
            if let Some(found) = geo_bounds(index, indexing, at, path, predicates) {
                near_geometries = true;
                out.bounds.fields.push(found);
                scan_fields.push((path.clone(), *descending));
                continue;
            }
            // Nothing else narrows a geometry, nor what a grid has beside it.
            if index.is_geo_field(at) || matches!(indexing, Indexing::Grid(_)) {
                if at == 0 {
                    return None;
                }
                out.bounds.fields.push(FieldBounds {
                    path: path.clone(),
                    descending: *descending,
                    intervals: Intervals::all(),
                });
                scan_fields.push((path.clone(), *descending));
                continue;
            }
        }
        let candidates: Vec<(&Predicate<'_>, Intervals, Tightness)> = predicates
            .iter()
            .filter(|p| p.path == *path && (!is_wild || super::wildcard::can_serve(p.test, p.negated)))
            .filter(|p| !p.takes_array_for_document && (alike || !compares_strings(p.test)))
            .filter_map(|p| {
                let found =
                    if p.negated { negated_bounds(p.test, traits) } else { test_bounds(p.test, traits) };
                found.map(|(intervals, tight)| (p, intervals, tight))
            })
            .collect();
        let before = served.len();
        let mut intervals = choose(candidates, path, prefix, &used, &mut served);
        if at == 0 && intervals.is_none() {
            return None;
        }
        if let Some((_, group)) = &intervals {
            used.push(UsedField { path: path.clone(), prefix, group: *group });
        }
        if is_wild {
            // The path's name is the first part of such a field's keys.
            let (values, _) = intervals.as_mut()?;
            let (names, below) = super::wildcard::path_bounds(path, values);
            if below && !values.is_all() {
                *values = Intervals::all();
                served[before..].iter_mut().for_each(|(_, tight)| *tight = Tightness::Fetch);
            }
            out.bounds.fields.push(FieldBounds {
                path: "$_path".to_owned(),
                descending: *descending,
                intervals: names,
            });
            scan_fields.push(("$_path".to_owned(), *descending));
        }
        scan_fields.push((path.clone(), *descending));
        out.bounds.fields.push(FieldBounds {
            path: path.clone(),
            descending: *descending,
            intervals: intervals.map_or_else(Intervals::all, |(intervals, _)| intervals),
        });
    }
    // Documents without geometries are not in the index.
    if !near_geometries {
        return None;
    }
    out.fields = scan_fields;
    settle(&mut out, predicates, &served);
    Some(out)
}

fn is_number(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
}

/// The bounds of a field that is a geometry: by the first condition on it that the index knows how to serve.
fn geo_bounds(
    index: &Index,
    indexing: &Indexing,
    at: usize,
    path: &str,
    predicates: &[Predicate<'_>],
) -> Option<FieldBounds> {
    let fits = |p: &&Predicate<'_>| {
        index.is_geo_field(at) && p.path == path && !p.negated && !p.takes_array_for_document
    };
    let served = |p: &Predicate<'_>| match p.test {
        Test::Geo(predicate) => indexing.ranges(predicate).map(|ranges| {
            let interval = |(low, high)| Interval::new(Value::Int64(low), true, Value::Int64(high), true);
            Intervals::from_unsorted(ranges.into_iter().map(interval).collect())
        }),
        // It is read in rings, which have their own bounds.
        Test::Near(near) => indexing.serves_near(near).then(Intervals::all),
        _ => None,
    };
    let is_near = |p: &&Predicate<'_>| matches!(p.test, Test::Near(_));
    let intervals = predicates
        .iter()
        .filter(fits)
        .filter(is_near)
        .find_map(served)
        .or_else(|| predicates.iter().filter(fits).find_map(served))?;
    Some(FieldBounds { path: path.to_owned(), descending: false, intervals })
}

/// Whether values within can be strings, or have strings in them.
pub fn may_hold_strings(intervals: &Intervals) -> bool {
    // In the order of types: strings, documents, arrays.
    let first_behind = Value::Binary(Binary { subtype: 0, bytes: &[] });
    !intervals.intersect(&Intervals::range(Value::String(""), true, first_behind, false)).is_empty()
}

/// A field that has got bounds already.
struct UsedField {
    path: String,
    prefix: usize,
    group: Option<usize>,
}

/// Chooses the conditions that bound a field. On a field with arrays each condition may hold for another
/// element, so only those of one `$elemMatch` are intersected.
fn choose(
    candidates: Vec<(&Predicate<'_>, Intervals, Tightness)>,
    path: &str,
    prefix: usize,
    used: &[UsedField],
    served: &mut Vec<(usize, Tightness)>,
) -> Option<(Intervals, Option<usize>)> {
    let clashing = used.iter().find(|other| shares_array(path, prefix, other));
    let allowed = candidates.into_iter().filter(|(p, ..)| match clashing {
        // Two fields below one array may be bounded together only by one `$elemMatch`.
        Some(other) => p.group.is_some() && p.group == other.group,
        None => true,
    });
    let mut allowed: Vec<_> = allowed.collect();
    if prefix == 0 {
        served.extend(allowed.iter().map(|(predicate, _, tight)| (predicate.conjunct, *tight)));
        let all = allowed.into_iter().map(|(_, intervals, _)| intervals).collect();
        return Intervals::of_all(all).map(|intervals| (intervals, None));
    }
    // The narrowest first: points before ranges before everything.
    allowed.sort_by_key(|(p, intervals, _)| {
        let whole = intervals.is_all();
        (whole, !intervals.all_points(), p.negated, intervals.len())
    });
    let mut allowed = allowed.into_iter();
    let (first, intervals, tight) = allowed.next()?;
    served.push((first.conjunct, tight));
    let mut all = vec![intervals];
    if first.group.is_some() {
        for (other, more, tight) in allowed.filter(|(other, ..)| other.group == first.group) {
            all.push(more);
            served.push((other.conjunct, tight));
        }
    }
    let intervals = Intervals::of_all(all)?;
    Some((intervals, first.group))
}

/// Whether two fields have an array on the part of their paths that they share.
fn shares_array(path: &str, prefix: usize, other: &UsedField) -> bool {
    let shared = path.split('.').zip(other.path.split('.')).take_while(|(a, b)| a == b).count();
    let array = prefix.max(other.prefix).min(shared);
    // `prefix` counts components up to the last array; an array deeper than what is shared does not clash
    // by itself, but its shallower ones may, which is not known: be careful.
    array > 0 && prefix > 0 && other.prefix > 0
}

/// Works out which conjuncts need no more checking. A conjunct is exact if all of its parts bound the scan
/// exactly; one inside `$elemMatch` never is.
fn settle(out: &mut IndexUse, predicates: &[Predicate<'_>], served: &[(usize, Tightness)]) {
    // Of each conjunct: how many parts it has, whether one is within `$elemMatch`, and the loosest of its tightnesses.
    let total = predicates.iter().map(|p| p.conjunct + 1).max().unwrap_or(0);
    let mut conjuncts = vec![(0, false, None); total];
    for part in predicates {
        let (parts, grouped, _) = &mut conjuncts[part.conjunct];
        *parts += 1;
        *grouped |= part.group.is_some();
    }
    for (conjunct, tight) in served {
        let (_, _, loosest) = &mut conjuncts[*conjunct];
        *loosest = (*loosest).max(Some(*tight));
    }
    for (conjunct, found) in conjuncts.into_iter().enumerate() {
        match found {
            (1, false, Some(Tightness::Exact)) => out.exact.push(conjunct),
            (1, false, Some(Tightness::Covered)) => out.covered.push(conjunct),
            _ => {}
        }
    }
}
