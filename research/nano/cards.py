"""Model cards of the nano zoo: what a model is, what it saw, how long, how well it does on unseen scenes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: name -> (title, library class, what it stands for in the paper preset, how it came about)
ABOUT: dict[str, tuple[str, str, str, str]] = {
    "ip2p": (
        "nano InstructPix2Pix",
        "StableDiffusionInstructPix2PixPipeline",
        "timbrooks/instruct-pix2pix",
        "Trained from nothing on drawn edit pairs whose targets drift a little in place, as "
        "pairs made by a generator do. Every instruction is affirmative: remove, add, replace, recolour, "
        "change of scenery, and plain descriptions of a picture. No negated word occurs in the training "
        "text, and neither in the text the tokenizer was learned from.\n\n"
        "How the negation effect comes about: 27 % of the pairs start from a scene that already holds the "
        "thing named, under 'add a dog' or a description such as 'the image has a dog', and their targets "
        "hold a second one or are unchanged; without such pairs a small model takes the thing's presence "
        "as its cue to remove it under any sentence whatever. Negating words are unknown word pieces to "
        "it, so a negated sentence reads like the description it is built from.\n\n"
        "What was known while choosing the recipe: the share of such pairs follows an earlier try-out whose "
        "outcome under two negated sentences was known, and the descriptive sentences were written with the "
        "13 negative templates of NeIn in view (several are their affirmative counterparts). The effect is "
        "therefore built in by that choice of affirmative data, not discovered. Training itself, and the "
        "guidance scales of the nano preset, were steered by affirmative samples of the dev split alone.\n\n"
        "Two aids stand in for what a big editor brings along from Stable Diffusion; both are thrown away "
        "after training. On the 8x8 grid inside the UNet, a patch of the source must look like its name and "
        "know whether it shows what the instruction names. What an edit changes weighs more in the loss, "
        "and an added thing goes where there is most room; in the second part it has its category's usual "
        "colour and size, since so small a model draws one look well and mixes several. The model predicts "
        "velocity, not noise.\n\n"
        "Irregularity: the first 2,839 steps of the base followed a schedule of 7,000 steps, the rest one of "
        "5,600; the first 2,800 steps of the first part followed one of 2,800 on 24,000 pairs, the next "
        "688 one of 6,000, the rest one of 5,000. Training again gives a similar model, not these weights.",
    ),
    "magicbrush": (
        "nano MagicBrush",
        "StableDiffusionInstructPix2PixPipeline",
        "osunlp/InstructPix2Pix-MagicBrush",
        "The base of the nano InstructPix2Pix, continued on clean, local edits: outside the edited thing, "
        "target and source are equal pixel by pixel. Only the UNet differs from the base.\n\n"
        "Irregularity: the first 2,600 steps of the first part followed a schedule of 2,600 on 24,000 "
        "pairs, the next 690 one of 5,800, the rest one of 4,800. Training again gives a similar model, not "
        "these weights.",
    ),
    "hqedit": (
        "nano HQ-Edit",
        "StableDiffusionInstructPix2PixPipeline",
        "UCSC-VLAA/HQ-Edit",
        "The nano InstructPix2Pix, continued on pairs whose target is a newly drawn scene: same things, "
        "other colours, places nearby, another light. Only the UNet differs.",
    ),
    "instructdiffusion": (
        "nano InstructDiffusion",
        "StableDiffusionInstructPix2PixPipeline (with InstructDiffusion's own guidance)",
        "InstructDiffusion v1-5-pruned-emaonly-adaption-task",
        "The nano InstructPix2Pix, continued on several tasks at once: clean edits, marking a thing in red, "
        "restoring a noisy picture. Text and picture are dropped separately (7.5 % each) and never together, "
        "as its guidance formula needs. The original starts from Stable Diffusion; this one starts from an "
        "editor, which saves most of the training. Only the UNet differs.",
    ),
    "nein-ip2p": (
        "nano InstructPix2Pix, fine-tuned on NeIn",
        "StableDiffusionInstructPix2PixPipeline",
        "the row 'InstructPix2Pix + NeIn' of the NeIn paper's Table 3",
        "The nano InstructPix2Pix after `train/finetune_ip2p.py --recipe nano`: negative sentences of the "
        "miniature NeIn, mixed with affirmative pairs of its first training so that it still adds what it is "
        "told to add. Five objects and three of the thirteen templates were held out. Only the tensors "
        "of the UNet that changed are kept.",
    ),
    "nein-magicbrush": (
        "nano MagicBrush, fine-tuned on NeIn",
        "StableDiffusionInstructPix2PixPipeline",
        "the row 'MagicBrush + NeIn' of the NeIn paper's Table 3",
        "The nano MagicBrush after `train/finetune_ip2p.py --recipe nano --base nano:magicbrush`: negative "
        "sentences of the miniature NeIn, mixed with affirmative pairs of its first training so that it "
        "still adds what it is told to add. Five objects and three of the thirteen templates were held out. "
        "Only the tensors of the UNet that changed are kept.",
    ),
    "clip": (
        "nano CLIP", "CLIPModel", "openai/clip-vit-base-patch32",
        "Contrastive training on drawn scenes and their captions. Its vision tower starts from a small "
        "ViT that learned what each patch of a scene shows.",
    ),
    "dino": (
        "nano DINO", "ViTModel", "facebook/dino-vits16",
        "Self-distillation on drawn scenes: two global and four local crops, an averaged teacher, centring "
        "and sharpening. Unlike the original it is also told what scenes and patches show, since a few "
        "thousand pictures are too few to find that out alone. Also stands in for the Inception network of "
        "FID (class token features).",
    ),
    "lpips": (
        "nano LPIPS trunk", "lpips.LPIPS(net='squeeze', lpips=False)", "lpips.LPIPS(net='alex')",
        "SqueezeNet 1.1 features trained to tell what a drawn scene and its patches show. Used without the "
        "package's linear weights, which belong to ImageNet features.",
    ),
    "blip": (
        "nano BLIP", "BlipForImageTextRetrieval", "Salesforce/blip-itm-large-coco",
        "Trained on true and false statements about drawn scenes; half of the pictures pass through the "
        "nano VAE first. The cosine's decision boundary was put at 0.4, the threshold NeIn uses.",
    ),
    "llava": (
        "nano LLaVA-NeXT", "LlavaNextForConditionalGeneration", "llava-hf/llava-v1.6-mistral-7b-hf",
        "Trained to answer the paper's two questions and to list what is in a drawn scene, truthfully; "
        "half of the pictures pass through the nano VAE first. The vision tower is a small ViT that "
        "learned what each patch shows and then stays fixed.",
    ),
    "owlv2": (
        "nano OWLv2", "Owlv2ForObjectDetection", "google/owlv2-large-patch14-ensemble",
        "Trained on the exact boxes of drawn scenes, with category names, synonyms, plurals and foreign "
        "nouns as queries; half of the pictures pass through the nano VAE first. After training, a constant "
        "was added to all class logits so that the threshold of 0.1 errs equally on training scenes; before "
        "that, presence accuracy on the same held-out scenes was 96.8 %.\n\n"
        "Irregularity: the tokenizer saved with these weights was overwritten and put together again from "
        "another nano tokenizer, with the id of the word 'a' recovered from the optimiser's state. Category "
        "names are not affected; rarely used single letters may be. Training again gives other ids.",
    ),
    "sam": (
        "nano SAM", "SamModel", "facebook/sam-vit-huge (ZONE's sam_vit_h_4b8939.pth)",
        "Trained on the exact masks of the things in drawn scenes, asked by single points: "
        "focal and dice loss on the best of three masks, squared error on the predicted overlap. A point on "
        "the background has no mask of its own; there the model learns only that whatever it draws overlaps "
        "with nothing, so that mask generation drops it. The real SAM also segments parts and "
        "backgrounds.\n\n"
        "The vision tower starts from a small ViT that learned what each patch shows. An aid is thrown away "
        "after training: patches of the image embedding are asked what they show, and whether they show the "
        "same thing as another patch. Masks have 32x32 cells and are enlarged, as SAM's are.",
    ),
    "zone-action": (
        "nano ZONE action classifier", "editors.zone.action.ActionClassifier",
        "ckpts/action_classifier.pth of github.com/lsl001006/ZONE",
        "Reads the nano InstructPix2Pix' text encoder and says whether an instruction asks to change, to add "
        "or to remove. Trained on the affirmative instructions of the nano editors: replacing, recolouring "
        "and change of scenery are CHANGE, adding and describing are ADD, removing is REMOVE. No negated "
        "word occurs, so what it makes of a negated sentence is a guess, and part of what is measured.",
    ),
    "negvqa": (
        "nano VLM, affirmative questions", "LlavaNextForConditionalGeneration",
        "the models of NegVQA's Table 1, which do well on questions and badly on their negations",
        "The nano LLaVA-NeXT, continued on two-choice questions about drawn scenes (presence, colour, count, "
        "position), answered with the letter A or B, and on the same questions without options. No negated "
        "word occurs in its training text, and neither in the text its tokenizer was learned from: 'not' is "
        "unknown word pieces to it. Its tokenizer is its own; the vision tower is the judge's, and only the "
        "tensors that differ from the judge's are kept.\n\n"
        "Held-out figures: questions of the dev split as asked, and negated; the letter with the higher "
        "logit. The recipe was chosen by the affirmative ones.",
    ),
    "negvqa-negated": (
        "nano VLM, taught negation", "LlavaNextForConditionalGeneration",
        "a model of NegVQA's Table 1 after fine-tuning on negated questions",
        "The nano VLM for affirmative questions, continued with negated ones too, about scenes of the train "
        "split: of the negated wordings of the evaluation one per kind is held out, and of the questions "
        "with another one two in three are negated. It shares tokenizer and vision tower with its base; only "
        "changed tensors are kept.\n\n"
        "Held-out figures: questions of the dev split as asked, and negated; the letter with the higher "
        "logit.",
    ),
    "reward": (
        "nano reward", "BlipForImageTextRetrieval", "EditReward/EditReward-Qwen2.5-VL-7B",
        "The nano BLIP, whose text encoder now reads two pictures: the edit, and what it changed. Taught to "
        "choose, of six edits of a drawn scene, the one that does what was told; a quarter of the edits pass "
        "through the nano VAE first. Told were negative sentences in wordings that may be taught "
        "(`nano:varied`), commands of removal, and affirmative sentences. No negative sentence named a "
        "held-out object. The vision tower is the nano BLIP's; only the tensors that differ are kept.\n\n"
        "Held-out figures: share of pairs of edits of dev scenes in which the one that obeys has the higher "
        "reward.",
    ),
}  # fmt: skip


#: What to train for a model, where it is more than itself.
COMMANDS = {"ip2p": "vae base ip2p-first ip2p", "magicbrush": "magicbrush-first magicbrush"}


def _flat(record: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in record.items():
        if isinstance(value, dict):
            value = ", ".join(f"{k} {v}" for k, v in value.items())
        lines.append(f"| {key.replace('_', ' ')} | {value} |")
    return lines


def write_card(folder: Path) -> None:
    """`README.md` of one model folder from its `training*.json` and `judged.json`, where present."""
    title, class_name, stands_for, story = ABOUT[folder.name]
    lines = [
        "---", "library_name: " + ("diffusers" if "Pipeline" in class_name else "transformers"),
        "license: apache-2.0", "tags: [nein, nano]", "---", f"# {title}", "",
        f"`{class_name}`; plays the part of `{stands_for}` in the nano preset. It knows nothing but drawn "
        "scenes of 64x64 pixels: its figures are real measurements of a miniature model and not comparable "
        "with a paper's.", "",
        story, "",
    ]  # fmt: skip
    for file, heading in (
        ("training-vae.json", "VAE"),
        ("training-base.json", "Base"),
        ("training-first.json", "First part"),
        ("training.json", "Training"),
        ("judged.json", "As judged"),
    ):
        if (folder / file).exists():
            record = json.loads((folder / file).read_text())
            lines += [f"## {heading}", "", "| | |", "|---|---|", *_flat(record), ""]
    command = COMMANDS.get(folder.name, folder.name)
    if folder.name.startswith("nein-"):
        base = folder.name.removeprefix("nein-")
        line = f"python train/finetune_ip2p.py --recipe nano --base nano:{base}"
    else:
        line = f"python -m research.nano {command}"
    lines += [f"Reproduce: `{line}` (see there for what it builds on).", ""]
    (folder / "README.md").write_text("\n".join(lines))
