//! `$top`, `$topN`, `$bottom`, `$bottomN`.

use sheaf_bson::{Binary, Bump, DocBuf, OwnedValue, RawDoc, Value, array_in};
use sheaf_errors::{Result, bail};
use sheaf_expr::{Expr, ParseCx};
use sheaf_query::sort::{SortOn, SortPattern};

use super::n;
use super::state::{Parsed, State, check_state_memory, copy_in, no_partial, partial_elements};
use crate::print;

/// The name under which a document's output value travels beside its sort keys.
const OUTPUT: &str = "output";
/// The name of the sort key beside it, in partial results.
const KEY: &str = "key";

/// For what is larger room is made first.
const LARGE_BYTES: usize = 64 << 10;

pub(super) fn parse(name: &'static str, argument: Value<'_>, cx: &mut ParseCx) -> Result<Parsed> {
    let Value::Document(spec) = argument else {
        bail!(5788001, "specification must be an object; found {name}: {}", print::value(argument));
    };
    let single = matches!(name, "$top" | "$bottom");
    let (mut sort_by, mut output, mut count) = (None, None, None);
    for field in spec.iter() {
        match (field.key(), field.value()) {
            ("n", value) if !single => count = Some(Expr::parse(value, cx)?),
            ("output", value) => output = Some(value),
            ("sortBy", Value::Document(pattern)) => {
                sort_by = Some(SortPattern::parse(pattern)?.with_collator(cx.collator()))
            }
            ("sortBy", other) => {
                bail!(10065, "invalid parameter: expected an object (sortBy), found {}", other.type_name())
            }
            (other, _) => bail!(5788002, "Unknown argument to {name} '{other}'"),
        }
    }
    if !single && count.is_none() {
        bail!(5788003, "Missing value for 'n'");
    }
    let Some(output) = output else { bail!(5788004, "Missing value for 'output'") };
    let Some(sort_by) = sort_by else { bail!(5788005, "Missing value for 'sortBy'") };
    // What the sort looks at is taken in, with the output's value beside it.
    let wrapped = sheaf_bson::DocBuf::build(|out| {
        out.append("root", &looked_at(&sort_by)).append(OUTPUT, output);
    });
    let input = Expr::parse(Value::Document(wrapped.as_raw()), cx)?;
    let bottom = name.starts_with("$bottom");
    Ok(Parsed {
        input,
        init: count,
        make: Box::new(move |count| {
            let keep = if single { 1 } else { n::count(count)? };
            Ok(Box::new(Top {
                name,
                bottom,
                single,
                keep,
                sort_by: sort_by.clone(),
                best: Vec::new(),
                held: 0,
            }))
        }),
    })
}

/// An expression for as much of a document as the sort needs: the fields at the top that its paths begin with.
fn looked_at(sort_by: &SortPattern) -> DocBuf {
    let mut root = DocBuf::new();
    for part in sort_by.parts() {
        let SortOn::Path(path) = &part.on else { continue };
        let dotted = path.dotted();
        let first = dotted.split('.').next().unwrap_or_default();
        if root.as_raw().get(first).is_none() {
            root.append(first, format!("${first}").as_str());
        }
    }
    root
}

struct Top {
    name: &'static str,
    bottom: bool,
    single: bool,
    keep: usize,
    sort_by: SortPattern,
    /// Sort key bytes and output, in the order of the sort.
    best: Vec<(Vec<u8>, OwnedValue)>,
    held: usize,
}

impl State for Top {
    fn add(&mut self, value: Value<'_>) -> Result<()> {
        let Value::Document(both) = value else { return Ok(()) };
        let root = both.get("root").and_then(|root| root.as_doc()).unwrap_or(RawDoc::EMPTY);
        // A large key does not come to twice its size by growing.
        let room = if root.len() > LARGE_BYTES { self.sort_by.key_room(root, RawDoc::EMPTY) } else { 0 };
        let mut key = Vec::with_capacity(room);
        self.sort_by.put_key_bytes(root, RawDoc::EMPTY, &mut key)?;
        self.insert(key, both.get_or_missing(OUTPUT))
    }

    fn result<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        if self.single {
            return Ok(self.best.first().map_or(Value::Null, |(_, output)| copy_in(output, arena)));
        }
        Ok(Value::Array(array_in(arena, |out| self.best.iter().for_each(|(_, output)| _ = out.push(output)))))
    }

    fn partial<'a>(&self, arena: &'a Bump) -> Result<Value<'a>> {
        Ok(Value::Array(array_in(arena, |out| {
            for (key, output) in &self.best {
                let key = Value::Binary(Binary { subtype: 0, bytes: key });
                out.document().append(KEY, key).append(OUTPUT, output);
            }
        })))
    }

    fn merge(&mut self, partial: Value<'_>) -> Result<()> {
        for one in partial_elements(self.name, partial)?.values() {
            match one.as_doc().and_then(|one| Some((one.get(KEY)?, one.get(OUTPUT)?))) {
                Some((Value::Binary(key), output)) => self.insert(key.bytes.to_vec(), output)?,
                _ => return no_partial(self.name, one),
            }
        }
        Ok(())
    }

    fn memory_bytes(&self) -> usize {
        self.held
    }
}

impl Top {
    /// Puts an output in its place, behind those of equal keys, if it is among those that are kept.
    fn insert(&mut self, key: Vec<u8>, output: Value<'_>) -> Result<()> {
        let full = self.best.len() >= self.keep;
        let place = self.best.partition_point(|(known, _)| *known <= key);
        if full && (if self.bottom { place == 0 } else { place == self.best.len() }) {
            return Ok(());
        }
        let output = OwnedValue::from(if output.is_missing() { Value::Null } else { output });
        self.held += key.len() + output.memory_bytes();
        self.best.insert(place, (key, output));
        if full {
            let (key, output) = self.best.remove(if self.bottom { 0 } else { self.best.len() - 1 });
            self.held -= key.len() + output.memory_bytes();
        }
        check_state_memory(self.name, self.held)
    }
}
