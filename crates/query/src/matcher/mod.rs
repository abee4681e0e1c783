//! Filters: parsing, a normalised tree for the planner, evaluation on raw bytes.

mod ast;
mod eval;
mod normalize;
mod operand;
mod operand_types;
mod parse;
mod regex;
mod rewrite;
mod serialize;

use sheaf_bson::{Bump, DocBuf, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Env, ParseCx};
use sheaf_meter::Held;

pub use ast::{BitsOp, CompareOp, InList, Leaf, MatchExpr, Test};
pub use eval::MatchDetails;
pub use operand_types::TypeSet;
pub(crate) use operand_types::{non_negative, parse_type_set};
pub use parse::Features;
pub(crate) use parse::{is_operators, is_path_operator};
pub use regex::Regex;

/// What the compiled patterns of a filter may have that is kept beyond its operation: a thousand of them are about so much.
const LASTING_BYTES: u64 = 1 << 20;

/// A parsed filter.
#[derive(Debug)]
pub struct Matcher {
    filter: DocBuf,
    root: MatchExpr,
    has_expr: bool,
    collator: Option<SharedCollator>,
    /// The memory of the tree, without compiled patterns, which hold their own.
    held: Held,
}

impl Matcher {
    /// Parses a filter. Constants that failed to fold inside `$expr` are kept in `cx`; the command ends
    /// parsing with [`ParseCx::finish_as`].
    ///
    /// ```
    /// use sheaf_bson::doc;
    /// use sheaf_expr::ParseCx;
    /// use sheaf_query::matcher::Matcher;
    ///
    /// let filter = doc! { "tags.since": { "$lt": 1800 } };
    /// let matcher = Matcher::parse(filter.as_raw(), &mut ParseCx::new())?;
    /// let plant = doc! { "name": "rye", "tags": ["cereal", { "since": 1756 }] };
    /// assert!(matcher.matches_doc(plant.as_raw())?);
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    pub fn parse(filter: RawDoc<'_>, cx: &mut ParseCx) -> Result<Matcher> {
        Self::parse_with(filter, Features::All, cx)
    }

    /// [`Matcher::parse`] where not every operator may stand.
    pub fn parse_with(filter: RawDoc<'_>, features: Features, cx: &mut ParseCx) -> Result<Matcher> {
        let (root, held) = sheaf_meter::growing(|| {
            sheaf_meter::grow(filter.len())?;
            parse::parse_filter(filter, features, cx).map(|parsed| finished(parsed, cx))
        })?;
        root.check_near()?;
        let has_expr = root.has_expr();
        Ok(Matcher { filter: filter.into(), root, has_expr, collator: cx.collator().cloned(), held })
    }

    /// [`Matcher::parse_with`] for a filter that stays when its operation has ended: with an index, with a database's
    /// profiling. No operation pays for it, so the compiled patterns in it must be few.
    ///
    /// Errors: `ExceededMemoryLimit` if they are not.
    pub fn parse_lasting(filter: RawDoc<'_>, features: Features) -> Result<Matcher> {
        let used = || sheaf_meter::current().map_or(0, |meter| meter.account().used());
        let before = used();
        let paid = Self::parse_with(filter, features, &mut ParseCx::new())?;
        if used().saturating_sub(before + paid.held_bytes()) > LASTING_BYTES {
            bail!(
                Code::EXCEEDED_MEMORY_LIMIT,
                "The compiled regular expressions of a filter that is kept may have {LASTING_BYTES} bytes"
            );
        }
        drop(paid);
        let _nobody_pays = sheaf_meter::shield();
        Self::parse_with(filter, features, &mut ParseCx::new())
    }

    /// The filter `{}`.
    pub fn everything() -> Matcher {
        Matcher {
            filter: DocBuf::new(),
            root: MatchExpr::AlwaysTrue,
            has_expr: false,
            collator: None,
            held: Held::default(),
        }
    }

    /// How strings compare, if not by their bytes.
    pub fn collator(&self) -> Option<&SharedCollator> {
        self.collator.as_ref()
    }

    /// The filter as it was given.
    pub fn filter(&self) -> RawDoc<'_> {
        self.filter.as_raw()
    }

    /// The normalised tree.
    pub fn root(&self) -> &MatchExpr {
        &self.root
    }

    /// The bytes that the operation's account has for the tree; 0 for a small one.
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// The normalised tree, owned.
    pub fn into_root(self) -> MatchExpr {
        self.root
    }

    /// Whether every document matches.
    pub fn matches_everything(&self) -> bool {
        matches!(self.root, MatchExpr::AlwaysTrue)
    }

    /// Whether `$expr` is used: then matching may fail, and allocates in the environment's arena.
    pub fn has_expr(&self) -> bool {
        self.has_expr
    }

    /// Whether `$text` is used: then a plan with a text index has to find the documents.
    pub fn has_text(&self) -> bool {
        self.root.has_text()
    }

    /// Whether a document matches. Nothing is allocated unless the filter has `$expr`.
    pub fn matches<'a>(&'a self, doc: RawDoc<'a>, env: &Env<'a>) -> Result<bool> {
        if self.has_expr { self.root.matches(doc, env, None) } else { self.root.matches_plain(doc) }
    }

    /// [`Matcher::matches`] for a document that a plan has found to match, and that may have changed since: what only a plan
    /// can answer (`$text`) is taken to hold still.
    pub fn matches_again<'a>(&'a self, doc: RawDoc<'a>, env: &Env<'a>) -> Result<bool> {
        if !self.has_text() {
            return self.matches(doc, env);
        }
        self.matches_with_details(doc, env).map(|details| details.is_some())
    }

    /// [`Matcher::matches`] with an environment made for this one call: for filters whose variables are all
    /// constants, which is so for every filter outside a pipeline of `$lookup`.
    pub fn matches_doc(&self, doc: RawDoc<'_>) -> Result<bool> {
        if !self.has_expr {
            return self.root.matches_plain(doc);
        }
        let arena = Bump::new();
        self.root.matches(doc, &Env::new(&arena), None)
    }

    /// Whether a document matches, and which array element `$` stands for.
    pub fn matches_with_details<'a>(
        &'a self,
        doc: RawDoc<'a>,
        env: &Env<'a>,
    ) -> Result<Option<MatchDetails>> {
        let mut details = MatchDetails::default();
        Ok(self.root.matches(doc, env, Some(&mut details))?.then_some(details))
    }

    /// The normalised filter as BSON: explain's `parsedQuery`.
    pub fn to_doc(&self) -> DocBuf {
        serialize::root_doc(&self.root)
    }

    /// What the plan cache files a query under: operators and paths without their operands, but with what of
    /// the operands decides which indexes can serve.
    pub fn shape(&self) -> Vec<u8> {
        let mut shape = Vec::new();
        serialize::put_shape(&self.root, &mut shape);
        shape
    }

    /// Adds the paths that the filter reads to `deps`.
    pub fn dependencies(&self, deps: &mut Deps) {
        put_dependencies(&self.root, deps);
    }
}

/// The parsed tree, normalised, and comparing as the context says.
fn finished(parsed: MatchExpr, cx: &ParseCx) -> MatchExpr {
    // A validator says what failed in the words of its author.
    let parsed =
        if parsed.has_expr() && !cx.is_validator() { rewrite::with_comparisons(parsed) } else { parsed };
    let mut root = normalize::normalize(parsed);
    if let Some(collator) = cx.collator() {
        root.collate(collator);
    }
    root
}

fn put_dependencies(expr: &MatchExpr, deps: &mut Deps) {
    match expr {
        // The conditions inside an $elemMatch are below the leaf's own path.
        MatchExpr::Leaf(leaf) => _ = deps.paths.insert(leaf.path.dotted().to_owned()),
        MatchExpr::Expr(expr) => expr.dependencies(deps),
        MatchExpr::Schema(_) | MatchExpr::Where(_) | MatchExpr::Text(_) => deps.whole_document = true,
        other => other.children().iter().for_each(|child| put_dependencies(child, deps)),
    }
}

/// A condition on one value: what `$pull` and `arrayFilters` test array elements with.
#[derive(Debug)]
pub struct ValueMatcher(MatchExpr);

impl ValueMatcher {
    /// Parses `{$gt: 5, $lt: 8}`.
    pub fn parse(operators: RawDoc<'_>, cx: &mut ParseCx) -> Result<ValueMatcher> {
        Ok(ValueMatcher(finished(parse::parse_operators("", operators, cx)?, cx)))
    }

    /// The condition that a value equals `operand`, or matches it if it is a regular expression.
    pub fn equals(operand: Value<'_>) -> Result<ValueMatcher> {
        Ok(ValueMatcher(parse::parse_equality("", operand)?))
    }

    /// Whether the value of an element passes. An array is taken as one value.
    ///
    /// Errors: what cannot be decided (51156); what the meter says.
    pub fn matches(&self, element: sheaf_bson::Element<'_>) -> Result<bool> {
        self.0.matches_element(element)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;
