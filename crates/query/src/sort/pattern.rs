//! Sort patterns: `{a: 1, "b.c": -1, score: {$meta: "textScore"}}`.

use sheaf_bson::{DocBuf, Element, RawDoc, Value};
use sheaf_collation::SharedCollator;
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::{Deps, FieldPath};

use crate::path::Path;

/// Most keys that a pattern may have.
const PARTS_MAX: usize = 32;

/// A parsed sort pattern.
#[derive(Clone, Debug)]
pub struct SortPattern {
    parts: Vec<SortPart>,
    /// How strings compare, if not by their bytes.
    pub(super) collator: Option<SharedCollator>,
}

/// One key of a pattern.
#[derive(Clone, Debug)]
pub struct SortPart {
    /// What to sort on.
    pub on: SortOn,
    /// Largest first.
    pub descending: bool,
}

/// What a sort looks at.
#[derive(Clone, Debug)]
pub enum SortOn {
    /// A path into the document.
    Path(Path),
    /// The document's metadata of this name, always largest first.
    Meta(Box<str>),
}

/// The `sort` of find and its kin.
#[derive(Clone, Debug)]
pub enum FindSort {
    /// No order asked for.
    None,
    /// `{$natural: 1}` or `{$natural: -1}` (true): the collection's own order.
    Natural(bool),
    /// By keys.
    Pattern(SortPattern),
}

impl FindSort {
    /// Parses find's `sort`, in which `$natural` may stand.
    pub fn parse(sort: RawDoc<'_>) -> Result<FindSort> {
        let Some(natural) = sort.element("$natural") else {
            if sort.is_empty() {
                return Ok(FindSort::None);
            }
            return SortPattern::parse(sort).map(FindSort::Pattern);
        };
        if sort.count() != 1 {
            bail!(
                Code::BAD_VALUE,
                "Cannot include '$natural' in compound sort: {}",
                sheaf_bson::document_text(sort)
            );
        }
        match direction_of(natural.value()) {
            Some(descending) => Ok(FindSort::Natural(descending)),
            None => bail!(Code::BAD_VALUE, "$natural sort cannot be set to a value other than -1 or 1."),
        }
    }
}

impl SortPattern {
    /// Parses the argument of a `$sort` stage.
    pub fn parse_stage(argument: Value<'_>) -> Result<SortPattern> {
        let Value::Document(pattern) = argument else {
            bail!(15973, "the $sort key specification must be an object");
        };
        if pattern.is_empty() {
            bail!(15976, "$sort stage must have at least one sort key");
        }
        Self::parse(pattern)
    }

    /// Parses a pattern.
    ///
    /// ```
    /// use sheaf_bson::doc;
    /// use sheaf_query::sort::SortPattern;
    ///
    /// let sort = SortPattern::parse(doc! { "grams": -1, "name": 1 }.as_raw())?;
    /// let (rye, oat) = (doc! { "name": "rye", "grams": 38 }, doc! { "name": "oat", "grams": 32 });
    /// assert!(sort.compare_docs(rye.as_raw(), oat.as_raw())?.is_lt());
    /// # Ok::<(), sheaf_errors::Error>(())
    /// ```
    pub fn parse(pattern: RawDoc<'_>) -> Result<SortPattern> {
        let mut parts: Vec<SortPart> = Vec::new();
        for element in pattern.iter() {
            let part = parse_part(element)?;
            if let SortOn::Path(path) = &part.on
                && parts.iter().any(|p| matches!(&p.on, SortOn::Path(other) if other == path))
            {
                bail!(7472500, "$sort key must not contain duplicate keys (field: '{}')", path.dotted());
            }
            parts.push(part);
            // At once: each new part is compared with all before it.
            if parts.len() > PARTS_MAX {
                bail!(13103, "too many compound keys");
            }
        }
        Ok(SortPattern { parts, collator: None })
    }

    /// The same order with strings compared by a collator.
    #[must_use]
    pub fn with_collator(mut self, collator: Option<&SharedCollator>) -> SortPattern {
        self.collator = collator.cloned();
        self
    }

    /// How strings compare, if not by their bytes.
    pub fn collator(&self) -> Option<&SharedCollator> {
        self.collator.as_ref()
    }

    /// The keys, most significant first.
    pub fn parts(&self) -> &[SortPart] {
        &self.parts
    }

    /// Whether any key is metadata.
    pub fn needs_metadata(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.on, SortOn::Meta(_)))
    }

    /// Whether the scores of `$text` are among the keys.
    pub fn needs_text_score(&self) -> bool {
        self.needs("textScore")
    }

    /// Whether distances are among the keys.
    pub fn needs_distance(&self) -> bool {
        self.needs("geoNearDistance")
    }

    fn needs(&self, metadata: &str) -> bool {
        self.parts.iter().any(|part| matches!(&part.on, SortOn::Meta(kind) if &**kind == metadata))
    }

    /// Adds what the sort reads to `deps`.
    pub fn dependencies(&self, deps: &mut Deps) {
        for part in &self.parts {
            match &part.on {
                SortOn::Path(path) => _ = deps.paths.insert(path.dotted().to_owned()),
                SortOn::Meta(kind) => {
                    deps.metadata.extend(METADATA.iter().find(|known| **known == &**kind));
                }
            }
        }
    }

    /// The pattern as BSON, with 1 and -1 as int32: for explain.
    pub fn to_doc(&self) -> DocBuf {
        DocBuf::build(|doc| {
            for (at, part) in self.parts.iter().enumerate() {
                match &part.on {
                    SortOn::Path(path) => {
                        _ = doc.append(path.dotted(), if part.descending { -1 } else { 1 });
                    }
                    SortOn::Meta(kind) => {
                        _ = doc.document(&format!("$computed{at}")).append("$meta", &**kind);
                    }
                }
            }
        })
    }
}

/// The metadata that can be sorted by.
const METADATA: &[&str] =
    &["textScore", "randVal", "searchScore", "vectorSearchScore", "geoNearDistance", "score"];

/// -1 or 1, by mongod's reading of it as an int32: the fraction of a double is dropped, a decimal is rounded. True
/// for -1.
fn direction_of(value: Value<'_>) -> Option<bool> {
    use sheaf_bson::number::{Truncated, truncate_to_i64};
    let value = match value {
        Value::Decimal128(n) => Value::Decimal128(n.to_integral(sheaf_bson::Rounding::HalfEven)),
        value => value,
    };
    match truncate_to_i64(value) {
        Some(Truncated::Integer(1)) => Some(false),
        Some(Truncated::Integer(-1)) => Some(true),
        _ => None,
    }
}

fn parse_part(element: Element<'_>) -> Result<SortPart> {
    let (name, value) = (element.key(), element.value());
    if let Value::Document(meta) = value {
        let Some(first) = meta.iter().next().filter(|first| first.key() == "$meta") else {
            bail!(17312, "$meta is the only expression supported by $sort right now");
        };
        if meta.count() > 1 {
            bail!(Code::FAILED_TO_PARSE, "Cannot have additional keys in a $meta sort specification");
        }
        return match first.value() {
            Value::String(kind) if METADATA.contains(&kind) => {
                Ok(SortPart { on: SortOn::Meta(kind.into()), descending: true })
            }
            _ => bail!(31138, "Illegal $meta sort: {}", sheaf_bson::element_text(name, value)),
        };
    }
    if !value.is_number() {
        bail!(15974, "Illegal key in $sort specification: {}", sheaf_bson::element_text(name, value));
    }
    let Some(descending) = direction_of(value) else {
        bail!(15975, "$sort key ordering must be 1 (for ascending) or -1 (for descending)");
    };
    FieldPath::parse(name)?;
    Ok(SortPart { on: SortOn::Path(Path::new(name)), descending })
}
