//! Projections: find's, `$project`, `$addFields`.
//!
//! All are one tree of fields ([`Node`]) and one pass over the document. Fields keep the order that they have
//! in the document; computed fields that the document does not have follow, in the order of the
//! specification.

mod add_fields;
mod apply;
mod kind;
mod parse;
mod tree;

use sheaf_bson::{DocBuf, DocWriter, RawDoc, Sink, document_in};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, Env, ParseCx};
use sheaf_meter::Held;

use crate::matcher::{Features, MatchDetails, Matcher};
pub use kind::{Kind, Mode};
use tree::Node;

/// A parsed projection.
#[derive(Debug)]
pub struct Projection {
    kind: Kind,
    root: Node,
    positional: bool,
    /// The memory of the tree.
    held: Held,
}

impl Projection {
    /// Parses a projection. Stages put their name before the error themselves (`Invalid $project :: caused by
    /// :: `).
    pub fn parse(spec: RawDoc<'_>, mode: Mode, cx: &mut ParseCx) -> Result<Projection> {
        Self::growing(|| parse::parse(spec, mode, cx))
    }

    /// Parses the argument of `$addFields` or `$set`.
    pub fn parse_add_fields(spec: RawDoc<'_>, cx: &mut ParseCx) -> Result<Projection> {
        Self::growing(|| add_fields::parse(spec, cx))
    }

    fn growing(parse: impl FnOnce() -> Result<Projection>) -> Result<Projection> {
        let (projection, held) = sheaf_meter::growing(parse)?;
        Ok(Projection { held, ..projection })
    }

    /// The bytes that the operation's account has for the tree; 0 for a small one.
    pub fn held_bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Whether it includes, excludes, or adds.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether every document comes out as it went in.
    pub fn is_identity(&self) -> bool {
        self.kind != Kind::Inclusion && self.root.is_empty()
    }

    /// Whether `a.$` is used, so that [`Projection::apply`] needs the details of the match.
    pub fn needs_match_details(&self) -> bool {
        self.positional
    }

    /// Checks that `a.$` can follow a filter: one with `$expr` or `$jsonSchema` does not say where it matched.
    pub fn check_filter(&self, filter: RawDoc<'_>, cx: &mut ParseCx) -> Result<()> {
        if self.positional {
            Matcher::parse_with(filter, Features::None, cx)?;
        }
        Ok(())
    }

    /// Whether anything is computed, so that evaluation may fail and uses the arena.
    pub fn is_computed(&self) -> bool {
        self.root.computed
    }

    /// The names of the metadata that it reads (`$meta`).
    pub fn metadata(&self) -> Vec<&'static str> {
        let mut deps = Deps::new();
        self.dependencies(&mut deps);
        deps.metadata.into_iter().collect()
    }

    /// Checks that a find can give the metadata that `$meta` asks for; `sorted` says that it has an order,
    /// `near` that it asks for distances, `text` that it has `$text`.
    ///
    /// Errors: `BadValue`, 40218.
    pub fn check_metadata(&self, sorted: bool, near: bool, text: bool) -> Result<()> {
        for name in self.metadata() {
            match name {
                "sortKey" if !sorted && !near => {
                    bail!(Code::BAD_VALUE, "cannot use sortKey $meta projection without a sort")
                }
                "textScore" if !text => {
                    bail!(40218, "query requires text score metadata, but it is not available")
                }
                "geoNearDistance" if !near => {
                    bail!(40218, "query requires $geoNear distance metadata, but it is not available")
                }
                "geoNearPoint" if !near => {
                    bail!(40218, "query requires $geoNear point metadata, but it is not available")
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The paths kept, if the projection only includes fields as they are: then an index that has them all
    /// (and no arrays) covers it.
    pub fn included_paths(&self) -> Option<Vec<String>> {
        if self.kind != Kind::Inclusion || self.positional {
            return None;
        }
        let mut paths = Vec::new();
        self.root.put_included("", &mut paths).then_some(paths)
    }

    /// Adds what of the document the projection reads to `deps`.
    pub fn dependencies(&self, deps: &mut Deps) {
        if self.kind != Kind::Inclusion {
            deps.whole_document = true;
        }
        self.root.dependencies("", deps);
    }

    /// The projection as explain prints it.
    pub fn to_doc(&self) -> DocBuf {
        DocBuf::build(|doc| self.root.serialize(self.kind, true, doc))
    }

    /// Writes the projected document's fields. `details` is what the query's match told, for `a.$`.
    pub fn apply<'a, S: Sink>(
        &'a self,
        doc: RawDoc<'a>,
        env: &Env<'a>,
        details: Option<MatchDetails>,
        out: &mut DocWriter<'_, S>,
    ) -> Result<()> {
        apply::apply(self, doc, env, details, out)
    }

    /// The projected document, built in the environment's arena.
    ///
    /// ```
    /// use sheaf_bson::{Bump, doc};
    /// use sheaf_expr::{Env, ParseCx};
    /// use sheaf_query::projection::{Mode, Projection};
    ///
    /// let spec = doc! { "_id": 0, "name": 1, "tags.since": 1 };
    /// let projection = Projection::parse(spec.as_raw(), Mode::Find, &mut ParseCx::new())?;
    /// let plant = doc! { "_id": 1, "name": "rye", "grams": 38, "tags": ["cereal", { "since": 1756, "by": "L." }] };
    /// let arena = Bump::new();
    /// let projected = projection.apply_in(plant.as_raw(), &Env::new(&arena), None)?;
    /// assert_eq!(projected.as_bytes(), doc! { "name": "rye", "tags": [{ "since": 1756 }] }.as_bytes());
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    pub fn apply_in<'a>(
        &'a self,
        doc: RawDoc<'a>,
        env: &Env<'a>,
        details: Option<MatchDetails>,
    ) -> Result<RawDoc<'a>> {
        let mut result = Ok(());
        let projected = document_in(env.arena(), |out| result = self.apply(doc, env, details, out));
        result.map(|()| projected)
    }
}

#[cfg(test)]
mod tests;
